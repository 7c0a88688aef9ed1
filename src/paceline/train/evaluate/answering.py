"""The engine's answers to dialogues and prompts, greedily, in the model's chat format."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.config.sampling import SamplingParams
from paceline.errors import ConfigError
from paceline.train.synth.dialogue import Dialogue
from paceline.train.synth.render import chat_template

if TYPE_CHECKING:
    from paceline import LLM
    from paceline.engine.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its text with all tokens spelled, its ids, and whether the model ended it."""

    text: str
    ids: list[int]
    stopped: bool


class ChatForm:
    """Puts conversations into a model's chat format; a model without a chat template gets the demo's."""

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        if tokenizer is None:
            raise ConfigError("the model has no tokenizer: its answers cannot be read", key="model")
        self.tokenizer = tokenizer
        self._template = None if tokenizer.has_chat_template else chat_template()
        if self._template is not None:
            warnings.warn("the model has no chat template: prompts are put into the demo's", stacklevel=2)

    def encode(self, messages: list[dict[str, Any]], tools: Any = None, thinking: bool = False) -> list[int]:
        """Token ids of a conversation, ready for the answer."""
        text = self.tokenizer.render_chat(
            messages, tools=tools, template=self._template, enable_thinking=thinking
        )
        return self.tokenizer.encode_bare(text)


class Answerer:
    """Answers with one model, greedily."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self._form = llm, ChatForm(llm.tokenizer)
        self.encode = self._form.encode

    def answer(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
        """Greedy answers, in order; a prompt that leaves too little room is answered in what there is."""
        room = self._llm.max_model_len
        params = [
            SamplingParams(temperature=0.0, max_tokens=max(1, min(max_tokens, room - len(ids))))
            for ids in prompts
        ]
        return [
            Answer(
                self._form.tokenizer.decode(out.token_ids), list(out.token_ids), out.finish_reason == "stop"
            )
            for out in self._llm.generate(list(prompts), params)
        ]

    def answer_dialogues(self, dialogues: Sequence[Dialogue], max_tokens: int) -> list[Answer]:
        """Answers to what comes before each dialogue's last message."""
        return self.answer([self.encode(d.prompt, d.tools, d.thinking) for d in dialogues], max_tokens)

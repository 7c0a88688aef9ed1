"""The offline engine in a process of its own: the answers that the server must give, and the speed to hold it
against."""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What both engines are started with."""

    model: str
    speculative_config: dict[str, Any] | None
    max_num_seqs: int
    max_model_len: int
    chat_template: str | None = None
    """Jinja source instead of the model's own template."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, as far as its text depends on it."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    """Either these or `prompt`."""
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams`, the seed included."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the offline engine answers."""

    token_ids: list[int]
    text: str


class OfflineEngine:
    """The engine for a `with` block. Raises: PacelineError with the engine's own words."""

    def __init__(self, settings: EngineSettings):
        context = multiprocessing.get_context("spawn")
        self._pipe, self._far = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._far, settings), daemon=True)

    def __enter__(self) -> OfflineEngine:
        self._process.start()
        self._far.close()
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def answers(self, questions: list[Question]) -> list[Expected]:
        """The answers, in order."""
        found: list[Expected] = self._ask("answers", questions)
        return found

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """Seconds for `tokens` greedy tokens of each prompt, as one batch."""
        return float(self._ask("decode", (prompts, tokens)))

    def _ask(self, what: str, argument: Any) -> Any:
        self._pipe.send((what, argument))
        return self._answer()

    def _answer(self) -> Any:
        try:
            value = self._pipe.recv()
        except EOFError:
            raise PacelineError("the offline engine's process has died") from None
        if isinstance(value, Exception):
            raise value
        return value


def _serve(pipe: Connection, settings: EngineSettings) -> None:
    try:
        worker = _Worker(settings)
        pipe.send(None)
        while True:
            what, argument = pipe.recv()
            pipe.send(getattr(worker, what)(argument))
    except EOFError:
        return
    except PacelineError as error:
        pipe.send(error)


class _Worker:
    def __init__(self, settings: EngineSettings):
        from paceline import LLM

        self._template = settings.chat_template
        self._llm = LLM(
            settings.model,
            speculative_config=settings.speculative_config,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
        )

    def answers(self, questions: list[Question]) -> list[Expected]:
        engine = self._llm.engine
        done: dict[str, Expected] = {}
        for number, question in enumerate(questions):
            engine.add(self._request(str(number), question))
        while len(done) < len(questions):
            for event in engine.step():
                if event.error is not None:
                    raise event.error
                if event.output is not None:
                    (only,) = event.output.outputs
                    done[event.id] = Expected(only.token_ids, only.text)
        return [done[str(number)] for number in range(len(questions))]

    def _request(self, name: str, question: Question) -> Any:
        from paceline.engine.grammar import Structure
        from paceline.engine.request import Request

        tokenizer = self._llm.tokenizer
        assert tokenizer is not None, "a server has a tokenizer"
        if question.messages is None:
            ids = tokenizer.encode(question.prompt or "")
        else:
            text = tokenizer.render_chat(
                question.messages, tools=question.tools, template=self._template, **question.template_kwargs
            )
            ids = tokenizer.encode_bare(text)
        params = self._llm.default_sampling_params(**question.params)
        structure = None
        if question.schema is not None:
            structure = Structure("json_schema", json.dumps(question.schema), "schema")
        return Request(name, ids, params, question.params["seed"], structure=structure)

    def decode(self, work: tuple[list[list[int]], int]) -> float:
        from paceline import SamplingParams

        prompts, tokens = work
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        start = time.perf_counter()
        self._llm.generate(prompts, params)
        return time.perf_counter() - start

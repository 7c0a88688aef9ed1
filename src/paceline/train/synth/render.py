"""Dialogues as text in the demo's chat format, and which of that text is the model's own.

`pieces` is the fast path for training data: plain string work that says what to learn. `chat_template.jinja`
is the reference; the two agree to the character in a test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from paceline.train.synth.dialogue import Dialogue, Message

_HOW_TO_CALL = (
    "To call a function, write:\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>\n\nGive every required parameter. If no function fits, answer without one."
)


class Piece(NamedTuple):
    """A stretch of text; `learn` marks what the model writes, its end-of-turn token included."""

    text: str
    learn: bool


@cache
def chat_template() -> str:
    """Jinja source of the demo's chat template, as it goes into a tokenizer's `chat_template`."""
    return (
        files("paceline.train.synth").joinpath("chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")
    )


def pieces(dialogue: Dialogue) -> list[Piece]:
    """The whole dialogue. Answers before the last question are context: they have lost their think block."""
    last = max(i for i, message in enumerate(dialogue.messages) if message["role"] == "user")
    found = list(_system(dialogue))
    for index, message in enumerate(dialogue.messages):
        match message["role"]:
            case "user":
                found.append(Piece(f"<|im_start|>user\n{message['content'].strip()}<|im_end|>\n", False))
            case "tool":
                found.append(Piece(_result(dialogue.messages, index), False))
            case "assistant" if index > last:
                found += _answer(message, dialogue.thinking)
            case "assistant":
                found.append(Piece(f"<|im_start|>assistant\n{_body(message)}<|im_end|>\n", False))
    return _merged(found)


def prompt_text(dialogue: Dialogue) -> str:
    """The dialogue up to its last answer, ready for the model to go on."""
    shown = Dialogue(dialogue.prompt, dialogue.category, dialogue.thinking, dialogue.tools)
    return "".join(piece.text for piece in pieces(shown)) + _opened(dialogue.thinking)


def _opened(thinking: bool) -> str:
    return "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")


def _system(dialogue: Dialogue) -> Iterator[Piece]:
    first = dialogue.messages[0]
    system = first["content"].strip() if first["role"] == "system" else ""
    if dialogue.tools:
        lines = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in dialogue.tools)
        head = f"# Tools\n\nYou may call these functions:\n\n<tools>{lines}\n</tools>\n\n{_HOW_TO_CALL}"
        system = f"{head}\n\n{system}" if system else head
    if system:
        yield Piece(f"<|im_start|>system\n{system}<|im_end|>\n", False)


def _answer(message: Message, thinking: bool) -> Iterator[Piece]:
    """The generation prompt, then what the model writes behind it."""
    reasoning = message.get("reasoning_content") or ""
    assert thinking or not reasoning, "reasoning in an answer that is not to think"
    yield Piece(_opened(thinking), False)
    thought = f"{reasoning.strip()}\n</think>\n\n" if thinking else ""
    yield Piece(f"{thought}{_body(message)}<|im_end|>", True)
    yield Piece("\n", False)


def _body(message: Message) -> str:
    content = message["content"].strip()
    calls = "\n".join(_call(call["function"]) for call in message.get("tool_calls") or ())
    return f"{content}\n\n{calls}" if content and calls else content or calls


def _call(function: dict[str, Any]) -> str:
    given = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n"
        "</parameter>\n"
        for key, value in function["arguments"].items()
    )
    return f"<tool_call>\n<function={function['name']}>\n{given}</function>\n</tool_call>"


def _result(messages: Sequence[Message], index: int) -> str:
    """One tool's result; neighbours share one user turn."""
    begins = index == 0 or messages[index - 1]["role"] != "tool"
    ends = index + 1 == len(messages) or messages[index + 1]["role"] != "tool"
    body = f"\n<tool_response>\n{messages[index]['content'].strip()}\n</tool_response>"
    return f"{'<|im_start|>user' if begins else ''}{body}{'<|im_end|>' + chr(10) if ends else ''}"


def _merged(found: list[Piece]) -> list[Piece]:
    """Neighbours of one kind as one, so that a tokenizer sees the text as it will at serving."""
    merged: list[Piece] = []
    for piece in found:
        if merged and merged[-1].learn == piece.learn:
            merged[-1] = Piece(merged[-1].text + piece.text, piece.learn)
        else:
            merged.append(piece)
    return merged

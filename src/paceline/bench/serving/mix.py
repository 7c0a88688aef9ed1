"""The mixed load: what each request sends, and what the offline engine is asked for the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.bench.serving.offline import Question

Kind = Literal[
    "plain", "streamed", "tools", "json_schema", "cancelled", "disconnected", "too_long", "malformed"
]
KINDS: tuple[Kind, ...] = (
    "plain", "streamed", "tools", "json_schema", "cancelled", "disconnected", "too_long", "malformed",
)  # fmt: skip
ANSWERED: tuple[Kind, ...] = ("plain", "streamed", "tools", "json_schema")
"""Kinds whose text is compared."""
VARIANTS = 40
"""Different requests of a kind."""

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city on a day.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "grade": {"enum": ["low", "middle", "high"]}},
    "required": ["yes", "grade"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the load."""

    kind: Kind
    variant: int
    path: str
    body: bytes
    leave_after: float = 0.0
    """Events after which a `cancelled` client leaves; seconds after which a `disconnected` one does."""


def asks(count: int, texts: Sequence[str], max_model_len: int, seed: int = 0) -> list[Ask]:
    """`count` requests of all kinds in a random, repeatable order. texts: prompts to choose from."""
    chooser = random.Random(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    chooser.shuffle(kinds)
    return [_ask(kind, chooser.randrange(VARIANTS), texts, max_model_len) for kind in kinds]


def questions(texts: Sequence[str]) -> dict[tuple[Kind, int], Question]:
    """What the offline engine is asked: every variant of the kinds whose text is compared."""
    return {
        (kind, variant): _question(kind, variant, texts) for kind in ANSWERED for variant in range(VARIANTS)
    }


def _params(kind: Kind, variant: int) -> dict[str, Any]:
    chooser = random.Random(f"{kind} {variant}")
    return {
        "max_tokens": chooser.randint(4, 48) if kind != "json_schema" else 64,
        "temperature": chooser.choice([0.0, 0.8]),
        "seed": variant,
    }


def _text(kind: Kind, variant: int, texts: Sequence[str]) -> str:
    return random.Random(f"text {kind} {variant}").choice(texts)


def _question(kind: Kind, variant: int, texts: Sequence[str]) -> Question:
    text, params = _text(kind, variant, texts), _params(kind, variant)
    messages = [{"role": "user", "content": text}]
    if kind == "tools":
        return Question(messages=messages, tools=TOOLS, params=params)
    if kind == "json_schema":
        return Question(
            messages=messages, template_kwargs={"enable_thinking": False}, schema=SCHEMA, params=params
        )
    return Question(prompt=text, params=params)


def _ask(kind: Kind, variant: int, texts: Sequence[str], max_model_len: int) -> Ask:
    make: dict[Kind, Callable[[], tuple[str, Any]]] = {
        "tools": lambda: (CHAT, {"messages": messages, "tools": TOOLS, **traced, **params}),
        "json_schema": lambda: (CHAT, {
            "messages": messages, "chat_template_kwargs": {"enable_thinking": False},
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
            **params,
        }),
        "streamed": lambda: (COMPLETIONS, {"prompt": text, **traced, **params}),
        "cancelled": lambda: (COMPLETIONS, {"prompt": text, **traced, **long}),
        "disconnected": lambda: (COMPLETIONS, {"prompt": text, **long}),
        "too_long": lambda: (COMPLETIONS, {"prompt": [5] * (max_model_len + 9)}),
        "malformed": lambda: (COMPLETIONS, {"prompt": text, "temperature": "warm"}),
        "plain": lambda: (COMPLETIONS, {"prompt": text, **params}),
    }  # fmt: skip
    text, params = _text(kind, variant, texts), _params(kind, variant)
    messages = [{"role": "user", "content": text}]
    traced = {"stream": True, "paceline": {"trace": True}}
    long = {"max_tokens": 300, "ignore_eos": True, "seed": variant, "temperature": 0.8}
    path, body = make[kind]()
    data = json.dumps(body).encode()
    if kind == "malformed" and variant % 2:
        data = data[:-9]  # no JSON at all
    chooser = random.Random(f"leave {variant}")
    leave = {"cancelled": float(chooser.randint(1, 12)), "disconnected": chooser.uniform(0.005, 0.2)}
    return Ask(kind, variant, path, data, leave.get(kind, 0.0))

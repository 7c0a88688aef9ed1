"""One generated dialogue, and where its randomness comes from.

Every generator is a pure function of (seed, index, split): nothing is stored, any process can make any
dialogue, and a run is told apart from another by its seed alone. What may not stand in both splits (pairs of
operands, names of tools, full names of people) is dealt by a hash of the thing itself, so that the splits
stay disjoint whatever the seeds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")
Message = dict[str, Any]
T = TypeVar("T")

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a friendly assistant that answers briefly.",
    "Answer the user's question.",
    "You are an assistant. Be clear and short.",
)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages whose last one is the answer that a model should learn, or be asked for."""

    messages: list[Message]
    """{role, content, reasoning_content?, tool_calls?}, as chat templates take them."""
    category: str
    thinking: bool = False
    """Whether the answers after the last question begin in an open think block."""
    tools: list[dict[str, Any]] | None = None
    """The tools on offer, in OpenAI's form."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What scoring needs to know; its keys depend on the generator."""

    @property
    def prompt(self) -> list[Message]:
        """All messages but the last answer."""
        return self.messages[:-1]


Generator = Callable[[int, int, Split], Dialogue]
"""(seed, index, split) -> the dialogue."""


class Draw(random.Random):
    """Random choices of one dialogue; `split` says on which side of the hash rules they must fall."""

    def __new__(cls, seed: int, index: int, split: Split, stream: str) -> Draw:
        """Random's own constructor takes one argument only."""
        return super().__new__(cls)

    def __init__(self, seed: int, index: int, split: Split, stream: str) -> None:
        assert split in SPLITS, split
        self.split: Split = split
        salt = zlib.crc32(f"{stream}/{split}".encode())
        super().__init__((seed << 96) ^ (salt << 64) ^ index)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; faster than `choice`."""
        return options[int(self.random() * len(options))]

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random() < share

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.random() * (high - low + 1))


def is_held_out(*parts: object, one_in: int) -> bool:
    """Whether a thing belongs to the held-out split: one in `one_in` does, by a hash of the thing alone."""
    return zlib.crc32(" ".join(map(str, parts)).encode()) % one_in == 0


def user(text: str) -> Message:
    """A question."""
    return {"role": "user", "content": text}


def assistant(
    text: str, reasoning: str | None = None, calls: list[tuple[str, dict[str, Any]]] | None = None
) -> Message:
    """An answer; `calls` are (name, arguments)."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def opening(draw: Draw, share: float = 0.08) -> list[Message]:
    """A system message now and then, else nothing."""
    return [{"role": "system", "content": draw.pick(_SYSTEM)}] if draw.chance(share) else []


def joined(words: Sequence[str], word: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {word} {words[-1]}"

"""What a benchmark asks of an engine, and why a peer may be absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

TokenPrompts = Sequence[Sequence[int]]


class NotMeasured(Exception):
    """A row could not be measured; the message says why in one line. The row is null, never met."""


class PeerUnavailable(NotMeasured):
    """A peer could not be run."""


class Engine(Protocol):
    """Something that generates: ours or a peer's."""

    name: str

    def seconds(self, prompts: TokenPrompts, max_tokens: int) -> float:
        """Wall seconds to generate exactly `max_tokens` tokens for each prompt, all prompts as one batch.

        Greedy, end-of-sequence ids ignored, prompt processing included.
        """
        ...

    def environment(self) -> dict[str, Any]:
        """Versions, threads and settings that its figures depend on."""
        ...

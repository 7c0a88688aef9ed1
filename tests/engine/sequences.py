"""Sequences for scheduler and batch tests."""

from __future__ import annotations

from paceline.config.sampling import SamplingParams
from paceline.engine.sequence import Sequence


def make(prompt: int, max_tokens: int | None = 8, name: str = "r") -> Sequence:
    """A sequence whose prompt is 0, 1, 2, ..."""
    return Sequence(name, 0, list(range(prompt)), SamplingParams(max_tokens=max_tokens), key=1)


def decoding(length: int, blocks: list[int], slot: int, pending: int = 0) -> Sequence:
    """A sequence of `length` committed tokens that waits for its next window."""
    sequence = make(length)
    sequence.max_new_tokens = 8
    sequence.commit_prompt(length, first_token=99)
    sequence.pending = pending
    sequence.slot = slot
    sequence.set_blocks(blocks)
    return sequence

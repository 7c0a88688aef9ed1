"""What the scheduler promises for a step, and what it needs from those around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.engine.sequence import Sequence
from paceline.errors import CapacityError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What bounds a step. Counts are tokens (rows) unless said otherwise."""

    max_num_seqs: int
    """Sequences that run at once."""
    max_num_batched_tokens: int
    """Rows of one step, prompt chunks and windows together."""
    max_model_len: int
    """Prompt and output of one sequence together."""
    prefill_cell: int | None = None
    """Deterministic mode: chunks are whole cells [k * cell, (k + 1) * cell) of the prompt. None: any cut."""
    num_drafts: int = 0
    """Drafts of a window at most (n)."""
    lookahead: int = 0
    """Positions beyond the window that the proposer writes while it takes in committed rows."""
    draft_span: int = 0
    """Positions from the anchor's on that the proposer writes when it drafts, however few drafts count."""
    drafter_max_length: int | None = None
    """Longest sequence, drafts included, that the drafter can serve; beyond it windows hold no drafts."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """`count` prompt tokens of a sequence from position `start` on; from 0 on, the state starts fresh."""

    sequence: Sequence
    start: int
    count: int

    @property
    def completes(self) -> bool:
        """Whether the chunk ends the prompt, so that its last row gives the first output token."""
        return self.start + self.count == len(self.sequence.prompt_ids)


@dataclass(frozen=True, slots=True)
class Window:
    """A verification window: the anchor at position `sequence.length` and up to `rows - 1` drafts.

    A proposer that finds fewer drafts makes the window shorter; it never makes it longer.
    """

    sequence: Sequence
    rows: int

    @property
    def max_drafts(self) -> int:
        """Drafts that the window has room for."""
        return self.rows - 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence that the scheduler had to give up, and why. It owns nothing any more and is finished."""

    sequence: Sequence
    error: CapacityError


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Every sequence in it owns the blocks of each position that the step may write.

    A running sequence may be in neither list: it waits for blocks or rows and keeps all that it has.
    """

    index: int
    """Number of the step, from 0."""
    prefill: tuple[PrefillChunk, ...]
    windows: tuple[Window, ...]
    admitted: tuple[Sequence, ...]
    """Sequences that have just got their slot for the first time."""
    preempted: tuple[Sequence, ...]
    """Sequences that moved to host memory before this step (they may be in `restored` as well)."""
    restored: tuple[Sequence, ...]
    """Sequences that came back from host memory, into other blocks and another slot."""
    failed: tuple[Failure, ...]

    @property
    def num_rows(self) -> int:
        """Rows of the step, drafts included."""
        return sum(c.count for c in self.prefill) + sum(w.rows for w in self.windows)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.prefill and not self.windows


class Swapper(Protocol):
    """Moves everything of a sequence out of the device and back; called between steps, never during one."""

    def save(self, sequence: Sequence) -> None:
        """Copy all that the sequence needs to host memory, while it still owns its blocks and slot.

        Raises `CapacityError` when host memory is used up; nothing has changed then.
        """
        ...

    def restore(self, sequence: Sequence) -> None:
        """Copy it back into the blocks and the slot that the sequence owns now, and forget the copy."""
        ...

    def drop(self, sequence: Sequence) -> None:
        """Forget the copy of a sequence that will not come back."""
        ...


ForcePreempt = Callable[[int, Sequence], bool]
"""`force_preempt(step index, running sequence)`: whether it must go to host memory before this step."""


class Prefix(Protocol):
    """Reuse of known prompt prefixes, as far as planning has to know of it."""

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence that is about to start the blocks of a known prefix, and its length."""
        ...

    def next_cut(self, sequence: Sequence) -> int | None:
        """Length at which the sequence's next chunk must end at the latest; None: anywhere."""
        ...

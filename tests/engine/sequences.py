"""Sequences, and a scheduler without a device, for scheduler and batch tests."""

from __future__ import annotations

from paceline.cache.blocks import BlockPool
from paceline.cache.slots import SlotPool
from paceline.config.sampling import SamplingParams
from paceline.engine.plan import ForcePreempt, SchedulerLimits, StepPlan
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.errors import CapacityError

BS = 8


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


class FakeSwapper:
    """Counts; refuses when it holds `room` sequences already."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.held: set[Sequence] = set()

    def save(self, sequence: Sequence) -> None:
        assert sequence.slot, "save comes before the slot is given back"
        if len(self.held) == self.room:
            raise CapacityError("host memory is used up: raise host_swap_gib")
        self.held.add(sequence)

    def restore(self, sequence: Sequence) -> None:
        assert sequence.slot, "restore comes after the new slot is there"
        self.held.remove(sequence)

    def drop(self, sequence: Sequence) -> None:
        self.held.remove(sequence)


def scheduler(
    blocks: int = 100,
    *,
    seqs: int = 4,
    tokens: int = 1000,
    length: int = 1000,
    room: int = 100,
    drafts: int = 0,
    cell: int | None = None,
    lookahead: int = 0,
    drafter: int | None = None,
    force: ForcePreempt | None = None,
) -> Scheduler:
    """`blocks` usable blocks of 8 positions."""
    limits = SchedulerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        prefill_cell=cell,
        num_drafts=drafts,
        lookahead=lookahead,
        drafter_max_length=drafter,
    )
    return Scheduler(BlockPool(blocks + 1, BS), SlotPool(seqs + 1), FakeSwapper(room), limits, force)


def run(plan: StepPlan, accept: int = 0) -> None:
    """Commit a step as an engine would: each window keeps up to `accept` drafts."""
    for chunk in plan.prefill:
        chunk.sequence.commit_prompt(chunk.count, 7 if chunk.completes else None)
    for window in plan.windows:
        window.sequence.commit([7] * min(1 + accept, window.rows))


def chunks(plan: StepPlan) -> list[tuple[int, int]]:
    return [(c.start, c.count) for c in plan.prefill]


def rows(plan: StepPlan) -> list[int]:
    return [w.rows for w in plan.windows]


def added(s: Scheduler, *prompts: int, max_tokens: int = 100) -> list[Sequence]:
    sequences = [make(prompt, max_tokens) for prompt in prompts]
    for sequence in sequences:
        s.add(sequence)
    return sequences

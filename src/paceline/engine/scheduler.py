"""Which sequences run in the next step, with how many rows, and who gives way when blocks run out.

First come, first served. A step is planned in this order, so that progress is certain: the oldest running
sequence can take the blocks of all others, and who is in the plan owns every block that the step may write.

1. Running sequences, oldest first, get blocks for a window of one row. When blocks run out, scratch beyond
   such windows is given back first; then the youngest running sequence moves to host memory. The youngest
   itself waits instead, and keeps what it has.
2. What is left lets windows grow to their drafts, oldest first.
3. Sequences in host memory come back, oldest first; only when none is left are new ones admitted.
4. Rows are dealt out under the token budget: windows, then prompt chunks.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

from paceline.cache.base import NULL_SLOT, blocks_for
from paceline.cache.blocks import BlockPool
from paceline.cache.slots import SlotPool
from paceline.engine.plan import (
    Failure,
    ForcePreempt,
    PrefillChunk,
    Prefix,
    SchedulerLimits,
    StepPlan,
    Swapper,
    Window,
)
from paceline.engine.reserve import Reservations
from paceline.engine.sequence import Sequence, SequenceStatus
from paceline.errors import CapacityError, RequestError


@dataclass(slots=True)
class _Draft:
    """The plan of the step at hand, while it is being made."""

    rows: dict[Sequence, int] = field(default_factory=dict)
    """Window rows that each decoding sequence owns blocks for."""
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    restored: list[Sequence] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)


class Scheduler:
    """Owns the line of sequences and, for each running one, its blocks and its slot.

    One thread calls it, between steps. The engine commits what a step has produced to the sequences
    themselves and reports those that are done through `finish`.
    """

    def __init__(
        self,
        blocks: BlockPool,
        slots: SlotPool,
        swapper: Swapper,
        limits: SchedulerLimits,
        force_preempt: ForcePreempt | None = None,
        prefix: Prefix | None = None,
    ) -> None:
        assert limits.max_num_batched_tokens >= max(limits.max_num_seqs, limits.prefill_cell or 1)
        self.blocks = blocks
        self.slots = slots
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first, like `swapped`
        self.swapped: list[Sequence] = []
        self._swapper = swapper
        self._reserve = Reservations(blocks, limits)
        self._force_preempt = force_preempt
        self._prefix = prefix
        self._arrivals = 0
        self._steps = 0
        self._prefill_first = False

    @property
    def has_work(self) -> bool:
        """Whether any sequence is not finished."""
        return bool(self.waiting or self.running or self.swapped)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line.

        Raises `RequestError` when prompt and first token exceed the model length, `CapacityError` when the
        pool could not hold the prompt even if it were empty.
        """
        prompt = len(sequence.prompt_ids)
        longest = self.limits.max_model_len
        if prompt == 0:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        if prompt >= longest:
            raise RequestError(
                f"the prompt has {prompt} tokens, but max_model_len = {longest} leaves none for the answer: "
                f"shorten it to {longest - 1}, or raise max_model_len",
                param="prompt",
            )
        needed = blocks_for(prompt, self.blocks.block_size)
        if needed > self.blocks.num_usable:
            raise CapacityError(
                f"the prompt has {prompt} tokens and needs {needed} KV blocks, of which there are "
                f"{self.blocks.num_usable}: raise num_blocks or shorten the prompt"
            )
        wanted = sequence.params.max_tokens
        sequence.max_new_tokens = longest - prompt if wanted is None else min(wanted, longest - prompt)
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self.waiting.append(sequence)

    def schedule(self) -> StepPlan:
        """Plan the next step; blocks, slots and copies to or from host memory are settled on return."""
        draft = _Draft()
        index = self._steps
        self._steps += 1
        if self._force_preempt is not None:
            for sequence in [s for s in self.running if self._force_preempt(index, s)]:
                self._evict(sequence, draft)
        self._reserve_running(draft)
        for sequence in draft.rows:
            draft.rows[sequence] = self._reserve.widen(sequence)
        self._restore_swapped(draft)
        if not self.swapped:
            self._admit_waiting(draft)
        prefill, windows = self._deal_rows(draft)
        return StepPlan(
            index=index,
            prefill=tuple(prefill),
            windows=tuple(windows),
            admitted=tuple(draft.admitted),
            preempted=tuple(draft.preempted),
            restored=tuple(draft.restored),
            failed=tuple(draft.failed),
        )

    def preempt(self, sequence: Sequence) -> None:
        """Move a running sequence to host memory; it comes back by itself as soon as it fits.

        Raises `CapacityError`, and leaves it running, when host memory is used up.
        """
        assert sequence.status is SequenceStatus.RUNNING
        self._swapper.save(sequence)
        self._stop(sequence)
        sequence.status = SequenceStatus.SWAPPED
        bisect.insort(self.swapped, sequence, key=_arrival)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence wherever it is in its life: done, failed or aborted. Ending it twice is harmless."""
        if sequence.status is SequenceStatus.RUNNING:
            self._stop(sequence)
        elif sequence.status is SequenceStatus.SWAPPED:
            self.swapped.remove(sequence)
            self._swapper.drop(sequence)
        elif sequence.status is SequenceStatus.WAITING and sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.endings = None  # tables of rows that are not used again hold on to the sequence

    def check(self) -> None:
        """Assert that nothing leaked and nothing is owned twice, given that only sequences own blocks."""
        self.blocks.check(s.blocks for s in self.running)
        self.slots.check(s.slot for s in self.running)
        for line, status in ((self.running, SequenceStatus.RUNNING), (self.swapped, SequenceStatus.SWAPPED)):
            assert line == sorted(line, key=_arrival) and all(s.status is status for s in line)
        idle = [*self.waiting, *self.swapped]
        assert not any(s.blocks or s.slot for s in idle), "a sequence that does not run owns something"

    # -- running sequences ---------------------------------------------------------------------------------

    def _reserve_running(self, draft: _Draft) -> None:
        """Blocks for one-row windows; the sequences that got them are entered in `draft.rows`."""
        for sequence in list(self.running):
            if sequence.status is not SequenceStatus.RUNNING or sequence.in_prefill:
                continue  # just gave way to an older one; or it got its whole prompt's blocks at its start
            needed = self._reserve.missing(sequence)
            if needed:
                if not self._make_room(sequence, needed, draft):
                    continue
                self._reserve.extend(sequence, needed)
            draft.rows[sequence] = 1

    def _make_room(self, sequence: Sequence, needed: int, draft: _Draft) -> bool:
        """Free the blocks that `sequence` lacks, at the cost of scratch and of younger ones; False: it gets
        nothing."""
        if needed > self.blocks.num_free:
            for other in self.running:
                self._reserve.trim(other)
        while needed > self.blocks.num_free:
            youngest = self.running[-1]
            if youngest is sequence:
                if len(self.running) == 1:
                    self._fail(sequence, self._outgrown(sequence), draft)
                return False
            self._evict(youngest, draft)
        return True

    def _evict(self, sequence: Sequence, draft: _Draft) -> None:
        try:
            self.preempt(sequence)
        except CapacityError as error:
            self._fail(sequence, error, draft)
        else:
            draft.preempted.append(sequence)

    def _fail(self, sequence: Sequence, error: CapacityError, draft: _Draft) -> None:
        self.finish(sequence)
        draft.failed.append(Failure(sequence, error))

    def _outgrown(self, sequence: Sequence) -> CapacityError:
        return CapacityError(
            f"request {sequence.request_id} needs {self._reserve.least_blocks(sequence)} KV blocks for "
            f"{sequence.length + 1} tokens, and even alone it gets no more than {self.blocks.num_free} "
            f"of {self.blocks.num_usable}: raise num_blocks or lower max_tokens"
        )

    # -- sequences that do not run -------------------------------------------------------------------------

    def _restore_swapped(self, draft: _Draft) -> None:
        while self.swapped and self._can_start(self.swapped[0], draft):
            sequence = self.swapped.pop(0)
            self._start(sequence)
            self._swapper.restore(sequence)
            draft.restored.append(sequence)
            if not sequence.in_prefill:
                draft.rows[sequence] = self._reserve.widen(sequence)

    def _admit_waiting(self, draft: _Draft) -> None:
        while self.waiting and self._can_start(self.waiting[0], draft):
            sequence = self.waiting.popleft()
            if self._prefix:
                self._prefix.admit(sequence)
            self._start(sequence)
            draft.admitted.append(sequence)

    def _can_start(self, sequence: Sequence, draft: _Draft) -> bool:
        """Whether there is a place, a slot and blocks, with a block to spare for each that runs already."""
        needed = self._reserve.least_blocks(sequence)
        if len(self.running) >= self.limits.max_num_seqs or self.slots.num_free == 0:
            return False
        if needed + len(self.running) <= self.blocks.num_free:
            return True
        if not self.running:  # nothing will ever be given back
            self._fail(sequence, self._outgrown(sequence), draft)
        return False

    def _start(self, sequence: Sequence) -> None:
        sequence.slot = self.slots.allocate()
        self._reserve.extend(sequence, self._reserve.missing(sequence))
        sequence.status = SequenceStatus.RUNNING
        bisect.insort(self.running, sequence, key=_arrival)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._reserve.release(sequence)
        self.slots.release(sequence.slot)
        sequence.slot = NULL_SLOT

    # -- rows ----------------------------------------------------------------------------------------------

    def _deal_rows(self, draft: _Draft) -> tuple[list[PrefillChunk], list[Window]]:
        """Share out the token budget; prompts that got nothing in one step go first in the next."""
        budget = self.limits.max_num_batched_tokens
        first = self._deal_prefill(budget) if self._prefill_first else []
        budget -= sum(chunk.count for chunk in first)
        windows: list[Window] = []
        decoding = [s for s in self.running if s in draft.rows]
        for behind, sequence in zip(reversed(range(len(decoding))), decoding, strict=True):
            rows = min(draft.rows[sequence], max(budget - behind, min(budget, 1)))
            if rows:
                windows.append(Window(sequence, rows))
                budget -= rows
        prefill = first or self._deal_prefill(budget)
        self._prefill_first = not prefill and any(s.in_prefill for s in self.running)
        return prefill, windows

    def _deal_prefill(self, budget: int) -> list[PrefillChunk]:
        cell = self.limits.prefill_cell
        chunks: list[PrefillChunk] = []
        for sequence in self.running:
            if not sequence.in_prefill:
                continue
            start = sequence.length
            count = len(sequence.prompt_ids) - start
            count = min(count, budget) if cell is None else min(count, cell - start % cell)
            cut = self._prefix.next_cut(sequence) if self._prefix else None
            if cut is not None:
                count = min(count, cut - start)
            if 0 < count <= budget:
                chunks.append(PrefillChunk(sequence, start, count))
                budget -= count
        return chunks


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival

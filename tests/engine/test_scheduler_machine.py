"""Random lives of many sequences over a simulated device.

The device holds, for every position of every block, the token whose KV would be there, and for every slot
the tokens that its state has taken in. A step writes what a real one would write: scratch, rejected rows
and all. Before each step everything that a sequence has committed must still be there, whoever ran, moved
or ended in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.cache.base import blocks_for
from paceline.cache.blocks import BlockPool
from paceline.cache.slots import SlotPool
from paceline.engine.plan import PrefillChunk, SchedulerLimits, StepPlan, Window
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence, SequenceStatus
from paceline.errors import CapacityError
from tests.engine.sequences import make

BS = 8
SCRATCH = -7


@dataclass
class Slot:
    """A state that has taken in `state`, and the rows of its last window."""

    state: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)


class Device:
    """KV of target and multi-token head, and states; also the `Swapper`, with room for a few blocks.

    The head's entry at position p stands for its row of (hidden p - 1, token p).
    """

    def __init__(self, num_blocks: int, num_slots: int, room: int, lookahead: int) -> None:
        self.kv = [[SCRATCH] * BS for _ in range(num_blocks)]
        self.head = [[SCRATCH] * BS for _ in range(num_blocks)]
        self.slots = [Slot() for _ in range(num_slots)]
        self.room, self.lookahead = room, lookahead
        self.host: dict[Sequence, tuple[list[list[int]], list[list[int]], Slot]] = {}

    def write(self, store: list[list[int]], sequence: Sequence, position: int, token: int) -> None:
        """Beyond the table lies the null block: only what nobody will ever read may go there."""
        if position // BS < len(sequence.blocks):
            store[sequence.blocks[position // BS]][position % BS] = token
        else:
            assert position >= sequence.max_positions, "a step writes where it has reserved nothing"

    def read(self, store: list[list[int]], sequence: Sequence, positions: range) -> list[int]:
        return [store[sequence.blocks[p // BS]][p % BS] for p in positions]

    def save(self, sequence: Sequence) -> None:
        end = min(sequence.length + self.lookahead, sequence.max_positions)
        held = sequence.blocks[: blocks_for(end, BS)]
        if sum(len(kv) for kv, _, _ in self.host.values()) + len(held) > self.room:
            raise CapacityError("no room")
        saved = [[list(store[b]) for b in held] for store in (self.kv, self.head)]
        self.host[sequence] = (saved[0], saved[1], self.slots[sequence.slot])
        for block in held:
            self.kv[block], self.head[block] = [SCRATCH] * BS, [SCRATCH] * BS
        self.slots[sequence.slot] = Slot([SCRATCH])

    def restore(self, sequence: Sequence) -> None:
        kv, head, slot = self.host.pop(sequence)
        assert len(kv) <= len(sequence.blocks), "it comes back into fewer blocks than it left"
        for block, target, ahead in zip(sequence.blocks, kv, head, strict=False):
            self.kv[block], self.head[block] = target, ahead
        self.slots[sequence.slot] = slot

    def drop(self, sequence: Sequence) -> None:
        del self.host[sequence]


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, steps run with random acceptances, sequences are preempted, aborted, forced out."""

    @initialize(
        blocks=st.integers(2, 12),
        seqs=st.integers(1, 4),
        tokens=st.integers(8, 40),
        cell=st.sampled_from([None, 8]),
        drafts=st.integers(0, 5),
        lookahead=st.integers(0, 1),
        drafter=st.sampled_from([None, 20]),
        room=st.sampled_from([0, 3, 1000]),
    )
    def start(
        self,
        blocks: int,
        seqs: int,
        tokens: int,
        cell: int | None,
        drafts: int,
        lookahead: int,
        drafter: int | None,
        room: int,
    ) -> None:
        limits = SchedulerLimits(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            max_model_len=60,
            prefill_cell=cell,
            num_drafts=drafts,
            lookahead=lookahead,
            drafter_max_length=drafter,
        )
        self.limits = limits
        self.device = Device(blocks + 1, seqs + 1, room, lookahead)
        self.forced: set[Sequence] = set()
        self.scheduler = Scheduler(
            BlockPool(blocks + 1, BS),
            SlotPool(seqs + 1),
            self.device,
            limits,
            force_preempt=lambda index, sequence: sequence in self.forced,
        )
        self.scheduler._reserve._warned = True  # the drafter's length is no news here
        self.live: list[Sequence] = []
        self.committed: dict[Sequence, list[int]] = {}
        self.token = 1000

    @rule(prompt=st.integers(1, 30), max_tokens=st.integers(1, 30))
    def add(self, prompt: int, max_tokens: int) -> None:
        sequence = make(prompt, max_tokens)
        sequence.prompt_ids = list(range(self.token, self.token + prompt))
        self.token += prompt
        try:
            self.scheduler.add(sequence)
        except CapacityError:
            assert blocks_for(prompt, BS) > self.scheduler.blocks.num_usable
            return
        self.live.append(sequence)
        self.committed[sequence] = []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.scheduler.running))
        try:
            self.scheduler.preempt(sequence)
        except CapacityError:
            assert sequence.status is SequenceStatus.RUNNING

    @rule(data=st.data(), force=st.booleans())
    def step(self, data: st.DataObject, force: bool) -> None:
        if force and self.device.room:
            self.forced = {s for s in self.live if data.draw(st.booleans())}
        plan = self.scheduler.schedule()
        self.forced = set()
        self.check_plan(plan)
        for failure in plan.failed:
            assert failure.sequence.status is SequenceStatus.FINISHED
            self.live.remove(failure.sequence)
        for chunk in plan.prefill:
            self.run_chunk(chunk)
        for window in plan.windows:
            drafts = data.draw(st.integers(0, window.max_drafts), label="drafts")
            self.run_window(window, drafts, data.draw(st.integers(0, drafts), label="accepted"))

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        assert set(self.device.host) == set(self.scheduler.swapped)
        lines = [*self.scheduler.waiting, *self.scheduler.running, *self.scheduler.swapped]
        assert sorted(lines, key=id) == sorted(self.live, key=id), "a sequence was lost"
        for sequence in self.scheduler.running:
            tokens = [*sequence.prompt_ids, *sequence.output_ids]
            before = self.committed[sequence]
            assert tokens[: len(before)] == before, "a committed token changed"
            self.committed[sequence] = tokens[: sequence.length]
            device, length = self.device, sequence.length
            kept = device.read(device.kv, sequence, range(length))
            assert kept == tokens[:length], "committed KV was overwritten"
            if self.limits.lookahead and length:
                ahead = range(1, min(length + 1, sequence.max_positions))
                assert device.read(device.head, sequence, ahead) == tokens[1 : ahead.stop]
            slot = self.device.slots[sequence.slot]
            if sequence.length:
                taken = slot.state + slot.window[: sequence.pending]
                assert taken == tokens[: sequence.length], "the state is not that of the committed tokens"

    def teardown(self) -> None:
        """Whatever happened, everyone comes to an end: done, or failed for lack of memory."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.has_work:
                break
            plan = self.scheduler.schedule()
            self.check_plan(plan)
            assert not plan.empty or plan.failed, "nothing runs though there is work"
            for failure in plan.failed:
                self.live.remove(failure.sequence)
            for chunk in plan.prefill:
                self.run_chunk(chunk)
            for window in plan.windows:
                self.run_window(window, window.max_drafts, 0)
            self.nothing_is_lost()
        assert not self.scheduler.has_work and not self.live
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_usable

    def check_plan(self, plan: StepPlan) -> None:
        limits = self.limits
        assert plan.num_rows <= limits.max_num_batched_tokens
        assert len(self.scheduler.running) <= limits.max_num_seqs
        planned = [item.sequence for item in (*plan.prefill, *plan.windows)]
        assert len(planned) == len(set(planned)) and set(planned) <= set(self.scheduler.running)
        for chunk in plan.prefill:
            assert chunk.start == chunk.sequence.length
            if limits.prefill_cell:
                end = min(chunk.start + limits.prefill_cell, len(chunk.sequence.prompt_ids))
                assert chunk.start % limits.prefill_cell == 0 and chunk.start + chunk.count == end
        for window in plan.windows:
            assert 1 <= window.rows <= min(1 + limits.num_drafts, window.sequence.remaining)
            if window.rows > 1 and limits.drafter_max_length:
                assert window.sequence.length + window.rows <= limits.drafter_max_length

    def run_chunk(self, chunk: PrefillChunk) -> None:
        sequence, device = chunk.sequence, self.device
        slot = device.slots[sequence.slot]
        tokens = sequence.prompt_ids[chunk.start : chunk.start + chunk.count]
        if chunk.start == 0:
            slot.state, slot.window = [], []
        slot.state += tokens
        first = self.next_token() if chunk.completes else None
        following = [*sequence.prompt_ids, first][chunk.start + 1 : chunk.start + chunk.count + 1]
        for offset, token in enumerate(tokens):
            device.write(device.kv, sequence, chunk.start + offset, token)
            if self.limits.lookahead:
                device.write(device.head, sequence, chunk.start + offset + 1, following[offset])
        sequence.commit_prompt(chunk.count, first)
        self.end_if_done(sequence)

    def run_window(self, window: Window, drafts: int, accepted: int) -> None:
        """The drafter first; then rows of the anchor and `drafts` drafts, of which `accepted` agree."""
        sequence, device, start = window.sequence, self.device, window.sequence.length
        slot = device.slots[sequence.slot]
        for offset in range(window.rows):
            device.write(device.kv, sequence, start + offset, SCRATCH)
        slot.state += slot.window[: sequence.pending]  # replay
        slot.window = [sequence.anchor] + [self.next_token() for _ in range(drafts)]
        tokens = [*slot.window[1 : 1 + accepted], self.next_token()]
        sampled = tokens + [SCRATCH] * (drafts - accepted)
        for offset, token in enumerate(slot.window):
            device.write(device.kv, sequence, start + offset, token)
            if self.limits.lookahead:
                device.write(device.head, sequence, start + offset + 1, sampled[offset])
        sequence.commit(tokens)
        self.end_if_done(sequence)

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def end_if_done(self, sequence: Sequence) -> None:
        assert sequence.remaining >= 0
        if sequence.remaining == 0:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.live.remove(sequence)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

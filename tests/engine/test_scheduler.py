"""The line of sequences: who gets in, in which order, and how one ends."""

from __future__ import annotations

import pytest

from paceline.engine.sequence import SequenceStatus
from paceline.errors import CapacityError, RequestError
from tests.engine.sequences import added, chunks, make, rows, run, scheduler


def test_what_can_never_be_served_is_refused_at_the_door() -> None:
    s = scheduler(blocks=2, length=100)
    with pytest.raises(RequestError, match="empty"):
        s.add(make(0))
    with pytest.raises(RequestError, match="shorten it to 99"):
        s.add(make(100))
    with pytest.raises(CapacityError, match="needs 3 KV blocks, of which there are 2"):
        s.add(make(17))
    assert not s.has_work


@pytest.mark.parametrize(("asked", "given"), [(5, 5), (None, 10), (50, 10)])
def test_output_is_clipped_to_the_model_length(asked: int | None, given: int) -> None:
    s = scheduler(length=20)
    sequence = make(10, asked)
    s.add(sequence)
    assert sequence.max_new_tokens == given


def test_first_come_first_served_and_no_more_than_allowed() -> None:
    s = scheduler(seqs=2)
    a, b, c = added(s, 4, 4, 4)
    plan = s.schedule()
    assert plan.admitted == (a, b) and len(plan.prefill) == 2
    run(plan)
    s.finish(a)
    plan = s.schedule()
    assert plan.admitted == (c,)
    assert [w.sequence for w in plan.windows] == [b]
    s.check()


def test_a_long_prompt_is_not_overtaken() -> None:
    s = scheduler(blocks=4)
    a, long, short = added(s, 8, 32, 8)
    assert s.schedule().admitted == (a,)
    assert list(s.waiting) == [long, short]


def test_forced_preemption_at_every_step_changes_no_plan() -> None:
    plain = scheduler(drafts=3, cell=16)
    forced = scheduler(drafts=3, cell=16, force=lambda index, sequence: True)
    histories = []
    for s in (plain, forced):
        sequences = added(s, 40, 5, 17, max_tokens=9)
        history = []
        while s.has_work:
            plan = s.schedule()
            history.append((chunks(plan), rows(plan)))
            if s is forced:
                assert set(plan.preempted) == set(plan.restored)
            run(plan, accept=plan.index % 4)
            for sequence in sequences:
                if sequence.max_new_tokens and not sequence.remaining:
                    s.finish(sequence)
            s.check()
        histories.append(history)
    assert histories[0] == histories[1]


@pytest.mark.parametrize("state", ["new", "waiting", "prefill", "running", "swapped"])
def test_a_sequence_can_end_at_any_time_and_twice(state: str) -> None:
    s = scheduler(seqs=1, tokens=8)
    a = make(20)
    if state == "waiting":
        added(s, 4)
    if state != "new":
        s.add(a)
    if state in ("waiting", "prefill", "running", "swapped"):
        run(s.schedule())
    if state in ("running", "swapped"):
        run(s.schedule())
        run(s.schedule())
    if state == "swapped":
        s.preempt(a)
    for _ in range(2):
        s.finish(a)
        assert a.status is SequenceStatus.FINISHED and not a.blocks and not a.slot
    s.check()
    assert not s._swapper.held

"""When blocks run out: who shrinks, who waits, who moves to host memory, who fails."""

from __future__ import annotations

from paceline.engine.sequence import SequenceStatus
from tests.engine.sequences import added, chunks, rows, run, scheduler


def test_windows_shrink_before_anyone_is_preempted() -> None:
    s = scheduler(blocks=4, drafts=7)
    a, b = added(s, 7, 7)
    run(s.schedule())
    plan = s.schedule()
    assert rows(plan) == [8, 8] and s.blocks.num_free == 0
    run(plan)  # lengths 8: blocks for the second window row on are there already
    (c,) = added(s, 8)
    plan = s.schedule()
    assert rows(plan) == [8, 8] and not plan.preempted and c.status is SequenceStatus.WAITING
    run(plan, accept=7)  # lengths 16: a third block each would be needed
    plan = s.schedule()
    assert plan.preempted == (b,) and rows(plan) == [8]
    assert len(a.blocks) == 3
    s.check()


def test_scratch_is_given_back_before_anyone_is_preempted() -> None:
    s = scheduler(blocks=4, drafts=8)
    a, b = added(s, 14, 7)
    run(s.schedule())
    plan = s.schedule()  # a: 14..22; no block is left for more of b than 7
    assert rows(plan) == [9, 1] and [len(a.blocks), len(b.blocks)] == [3, 1]
    run(plan)
    plan = s.schedule()  # b needs a block for 8: a gives back the one that held only drafts
    assert not plan.preempted and rows(plan) == [1, 8]
    assert [len(a.blocks), len(b.blocks)] == [2, 2]
    s.check()


def test_the_youngest_moves_out_and_comes_back_before_new_ones() -> None:
    s = scheduler(blocks=5)
    a, b, c = added(s, 15, 8, 8, max_tokens=20)
    plan = s.schedule()
    assert plan.admitted == (a, b)  # a block to spare for each that runs
    run(plan)
    run(s.schedule())  # b takes its second block
    plan = s.schedule()  # a needs a third one: five in all
    assert not plan.preempted
    run(plan)
    while a.length < 24:
        run(s.schedule())
    plan = s.schedule()
    assert plan.preempted == (b,) and b.status is SequenceStatus.SWAPPED
    assert not b.blocks and not b.slot
    assert c.status is SequenceStatus.WAITING
    run(plan)
    length = b.length
    s.finish(a)
    plan = s.schedule()
    assert plan.restored == (b,) and plan.admitted == (c,)
    assert b.length == length and rows(plan) == [1]
    s.check()


def test_nobody_new_gets_in_while_someone_waits_to_come_back() -> None:
    s = scheduler(blocks=6)
    a, b = added(s, 8, 24, max_tokens=50)
    run(s.schedule())
    s.preempt(b)
    s.blocks.allocate(2)  # someone else's: b's four blocks do not fit
    (c,) = added(s, 4)
    plan = s.schedule()
    assert not plan.restored and not plan.admitted and [w.sequence for w in plan.windows] == [a]
    assert c.status is SequenceStatus.WAITING


def test_the_youngest_waits_rather_than_moving_out_for_itself() -> None:
    s = scheduler(blocks=3)
    a, b = added(s, 4, 8, max_tokens=50)
    run(s.schedule())
    s.blocks.allocate(1)  # someone else's
    plan = s.schedule()
    assert [w.sequence for w in plan.windows] == [a] and not plan.preempted
    assert b.status is SequenceStatus.RUNNING and b.length == 8


def test_a_prompt_half_read_moves_out_and_goes_on_where_it_was() -> None:
    s = scheduler(blocks=6, tokens=9, cell=8)
    a, b = added(s, 15, 24, max_tokens=30)
    run(s.schedule())
    s.blocks.allocate(s.blocks.num_free)  # someone else's
    plan = s.schedule()
    while not plan.preempted:  # until a needs a third block
        run(plan)
        plan = s.schedule()
    assert plan.preempted == (b,) and b.computed == 8 and b.in_prefill
    s.finish(a)
    plan = s.schedule()
    assert plan.restored == (b,) and chunks(plan) == [(8, 8)]


def test_shared_blocks_are_let_go_and_stay_with_the_others() -> None:
    s = scheduler()
    a, b = added(s, 16, 20)
    run(s.schedule())
    mine = b.blocks
    s.blocks.ref(a.blocks)
    s.blocks.unref(mine[:2])
    b.set_blocks(a.blocks + mine[2:])
    s.preempt(b)
    assert [s.blocks.refs(block) for block in a.blocks] == [1, 1]
    plan = s.schedule()
    assert plan.restored == (b,) and not set(b.blocks) & set(a.blocks)
    s.check()


def test_without_host_memory_the_youngest_fails_loudly() -> None:
    s = scheduler(blocks=3, room=0)
    a, b = added(s, 8, 4, max_tokens=50)
    run(s.schedule())
    while b.status is SequenceStatus.RUNNING:
        plan = s.schedule()
        run(plan)
    (failure,) = plan.failed
    assert failure.sequence is b and "host_swap_gib" in str(failure.error)
    assert b.status is SequenceStatus.FINISHED and a.status is SequenceStatus.RUNNING
    assert b.output_ids, "what it had is still there"
    s.check()


def test_a_sequence_that_outgrows_the_pool_alone_fails_loudly() -> None:
    s = scheduler(blocks=2)
    (a,) = added(s, 8, max_tokens=100)
    failed: tuple = ()
    while not failed:
        plan = s.schedule()
        failed = plan.failed
        run(plan)
    assert "needs 3 KV blocks for 17 tokens" in str(failed[0].error) and a.length == 16
    assert plan.empty and not s.has_work
    s.check()


def test_host_memory_and_pool_too_small_for_a_swapped_one_that_cannot_come_back() -> None:
    s = scheduler(blocks=2)
    (a,) = added(s, 15, max_tokens=100)
    run(s.schedule())
    run(s.schedule())
    s.preempt(a)  # it needs a third block from now on
    plan = s.schedule()
    assert [f.sequence for f in plan.failed] == [a]
    assert not s.has_work
    s.check()

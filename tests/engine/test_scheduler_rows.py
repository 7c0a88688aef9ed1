"""How a step's rows are dealt out: prompt chunks, windows, and what clips them."""

from __future__ import annotations

import warnings

import pytest

from tests.engine.sequences import added, chunks, make, rows, run, scheduler


def test_chunks_fill_the_token_budget() -> None:
    s = scheduler(tokens=20)
    added(s, 30, 5)
    plans = []
    for _ in range(2):
        plans.append(s.schedule())
        run(plans[-1])
    assert [chunks(p) for p in plans] == [[(0, 20)], [(20, 10), (0, 5)]]
    assert plans[1].prefill[0].completes and plans[1].num_rows == 15


def test_deterministic_chunks_are_whole_cells_of_each_sequence() -> None:
    s = scheduler(tokens=40, cell=16)
    added(s, 35, 20, 3)
    seen = []
    while not seen or seen[-1]:
        plan = s.schedule()
        seen.append(chunks(plan))
        for chunk in plan.prefill:
            chunk.sequence.commit_prompt(chunk.count, 7 if chunk.completes else None)
    # never part of a cell for lack of budget: the third prompt waits until there is room for all of it
    assert seen == [[(0, 16), (0, 16), (0, 3)], [(16, 16), (16, 4)], [(32, 3)], []]


def test_windows_and_prompts_take_turns_when_a_cell_does_not_fit_beside_windows() -> None:
    s = scheduler(tokens=16, cell=16, seqs=2)
    (a,) = added(s, 4)
    run(s.schedule())
    added(s, 40)
    kinds = []
    for _ in range(6):
        plan = s.schedule()
        kinds.append((len(plan.windows), len(plan.prefill)))
        run(plan)
    assert kinds == [(1, 0), (0, 1), (1, 0), (0, 1), (1, 1), (2, 0)]
    assert len(a.output_ids) == 5


def test_windows_are_clipped_to_the_remaining_tokens() -> None:
    s = scheduler(drafts=3)
    (a,) = added(s, 4, max_tokens=6)
    run(s.schedule())
    seen = []
    while a.remaining:
        plan = s.schedule()
        seen.append(rows(plan)[0])
        run(plan, accept=1)
    assert seen == [4, 3, 1]


def test_windows_end_before_the_model_length() -> None:
    s = scheduler(drafts=3, length=12)
    a = make(8, None)
    s.add(a)
    run(s.schedule())
    plan = s.schedule()
    assert rows(plan) == [3]  # positions 8, 9, 10; the last token, at 11, gets no KV
    run(plan, accept=3)
    assert a.remaining == 0 and len(a.prompt_ids) + len(a.output_ids) == 12


def test_beyond_the_drafters_length_there_are_no_drafts_and_one_warning() -> None:
    s = scheduler(drafts=3, drafter=13)
    added(s, 8, 8)
    run(s.schedule())
    seen = []
    with pytest.warns(RuntimeWarning, match="maximum length of 13") as caught:
        for _ in range(6):
            plan = s.schedule()
            seen.append(rows(plan)[0])
            run(plan)
    assert seen == [4, 4, 3, 2, 1, 1] and len(caught) == 1


def test_a_request_that_ends_before_the_drafters_length_gives_no_warning() -> None:
    s = scheduler(drafts=3, drafter=13)
    (a,) = added(s, 8, max_tokens=5)
    run(s.schedule())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while a.remaining:
            run(s.schedule())


def test_windows_shrink_to_the_token_budget_but_never_below_the_anchor() -> None:
    s = scheduler(drafts=3, tokens=6, seqs=3)
    added(s, 2, 2, 2)
    run(s.schedule())
    assert rows(s.schedule()) == [4, 1, 1]


@pytest.mark.parametrize(("drafts", "lookahead", "blocks"), [(3, 0, 2), (7, 0, 2), (7, 1, 3), (8, 0, 3)])
def test_a_step_owns_every_position_that_it_may_write(drafts: int, lookahead: int, blocks: int) -> None:
    s = scheduler(drafts=drafts, lookahead=lookahead)
    (a,) = added(s, 8)
    run(s.schedule())
    s.schedule()  # the window is 8..8 + drafts
    assert len(a.blocks) == blocks


def test_the_last_token_needs_no_block() -> None:
    s = scheduler(blocks=1)
    (a,) = added(s, 7, max_tokens=2)
    run(s.schedule())
    plan = s.schedule()
    run(plan)
    assert rows(plan) == [1] and a.remaining == 0 and len(a.blocks) == 1

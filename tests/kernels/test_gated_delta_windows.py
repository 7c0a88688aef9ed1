"""Windows, replay and rollback of the gated delta operator: bit for bit, for each implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels.gated_delta import DeltaShape
from tests.kernels.gated_delta_cases import IMPLEMENTATIONS, NAMES, NATIVE, SHAPES, Layer, ints

each_op = pytest.mark.parametrize("op", IMPLEMENTATIONS, ids=NAMES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
needs_native = pytest.mark.skipif(NATIVE is None, reason="no C++ compiler")

WINDOW = 8
TINY = DeltaShape(Hk=1, Hv=3, dk=8, dv=20)
# (rows of the window, how many of them become committed), one pair a step
STEP = st.integers(1, WINDOW).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
PLANS = st.lists(STEP, max_size=6)


def take(rows: tuple[Tensor, ...], start: int, count: int) -> list[Tensor]:
    return [x[start : start + count] for x in rows]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """torch.equal, but NaN equals NaN."""
    bits = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return torch.equal(a.view(bits), b.view(bits))


def speculate(
    layer: Layer, op: Any, rows: tuple[Tensor, ...], plan: list[tuple[int, int]], slot: int
) -> tuple[Tensor, int, int]:
    """Commits rows 0, 1, .. of `rows` by windows whose tails are rejected drafts, beside other sequences.

    Returns the outputs of the committed rows, their number, and what is pending at the end.
    """
    out, done, pending = [], 0, 0
    for count, accepted in plan:
        drafts = layer.rows(count - accepted)
        company = layer.rows(2 * WINDOW)
        window = [torch.cat(parts) for parts in zip(take(rows, done, accepted), drafts, strict=True)]
        # Company before and after, one padding sequence, one row of nobody.
        batch = [torch.cat([c[:3], w, c[3:]]) for w, c in zip(window, company, strict=True)]
        index = (ints(4, slot, 0, 5), ints(2, pending, 7, 0), ints(0, 3, 0, 4 + count), ints(3, count, 0, 8))
        got = op.window(*batch, layer.weights, layer.st, *index, WINDOW)
        out.append(got[3 : 3 + accepted])
        done, pending = done + accepted, accepted
    return torch.cat([*out, layer.rows(0)[1]]), done, pending


def check_plan(layer: Layer, op: Any, plan: list[tuple[int, int]]) -> None:
    rows = layer.rows(WINDOW * len(plan) + 1)
    for slot in (1, 2, 4, 5):
        layer.prefill(op, take(rows, 0, 1), slot)
    later = tuple(x[1:] for x in rows)
    got, done, pending = speculate(layer, op, later, plan, slot=1)
    want = layer.decode(op, take(later, 0, done), slot=2, pending=0) if done else got
    assert torch.equal(got, want)
    ours, theirs = layer.committed(op, 1, pending), layer.committed(op, 2, min(done, 1))
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


@each_op
@each_dtype
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_windows_with_rejected_rows_equal_decode_that_never_drafted(
    op: Any, dtype: torch.dtype, shape: DeltaShape
) -> None:
    check_plan(Layer.make(shape, dtype), op, [(1, 1), (8, 3), (4, 4), (5, 1), (8, 8), (2, 1)])


@each_op
@settings(max_examples=15, deadline=None)
@given(plan=PLANS, bf16=st.booleans())
def test_any_plan_of_windows_equals_decode(op: Any, plan: list[tuple[int, int]], bf16: bool) -> None:
    check_plan(Layer.make(TINY, torch.bfloat16 if bf16 else torch.float32), op, plan)


@each_op
def test_a_window_without_rows_only_replays(op: Any) -> None:
    layer = Layer.make(TINY, torch.float32)
    layer.prefill(op, layer.rows(4), slot=1)
    layer.window(op, layer.rows(5), slot=1, pending=0)
    state, history = layer.committed(op, 1, 3)
    index = (ints(1), ints(3), ints(0), ints(0), WINDOW)
    op.window(*layer.rows(2), layer.weights, layer.st, *index)
    assert torch.equal(layer.st.state[1], state)
    assert torch.equal(layer.st.conv_rows[1, :3], history)


@each_op
@each_dtype
def test_padding_leaves_every_slot_but_the_null_one_alone(op: Any, dtype: torch.dtype) -> None:
    layer = Layer.make(TINY, dtype)
    for slot in (1, 2, 3):
        layer.prefill(op, layer.rows(3), slot)
        layer.window(op, layer.rows(4), slot, pending=0)
    before = layer.twin()
    rows = layer.rows(6)
    # All padding but slot 2, whose window is rows 4 and 5; rows 0..3 belong to nobody.
    index = (ints(0, 2, 0), ints(3, 1, 0), ints(0, 4, 2), ints(0, 2, 0))
    out = op.window(*rows, layer.weights, layer.st, *index, WINDOW)
    assert not out[:4].any() and out[4:].isfinite().all() and out[4:].any()
    for now, then in zip(layer.st.tensors(), before.st.tensors(), strict=True):
        for slot in (1, 3):
            assert same_bits(now[slot], then[slot])
    alone = before.window(op, [x[4:] for x in rows], 2, pending=1)
    assert torch.equal(out[4:], alone) and torch.equal(layer.st.state[2], before.st.state[2])


@each_op
def test_the_null_slot_may_hold_anything(op: Any) -> None:
    """Its rows come out as zero even if a caller gives it some."""
    layer = Layer.make(TINY, torch.float32)
    rows = layer.rows(3)
    out = op.window(*rows, layer.weights, layer.st, ints(0), ints(0), ints(0), ints(3), WINDOW)
    assert torch.equal(out, torch.zeros_like(out))
    out = op.prefill(*rows, layer.weights, layer.st, ints(0), torch.tensor([True]), ints(0), ints(3))
    assert torch.equal(out, torch.zeros_like(out))


@each_op
@each_dtype
def test_commit_into_another_slot_is_a_checkpoint(op: Any, dtype: torch.dtype) -> None:
    layer = Layer.make(TINY, dtype)
    rows = layer.rows(20)
    layer.prefill(op, take(rows, 0, 6), slot=1)
    layer.window(op, take(rows, 6, 5), slot=1, pending=0)
    before = layer.twin()
    op.commit(layer.st, ints(1, 1), ints(3, 4), ints(2, 5))
    for now, then in zip(layer.st.tensors(), before.st.tensors(), strict=True):
        assert same_bits(now[1], then[1]) and same_bits(now[2], then[2])
    # Both checkpoints go on as a sequence that stopped there would have.
    for slot, length in ((3, 8), (4, 11)):
        layer.prefill(op, take(rows, 0, 6), slot=2)
        layer.decode(op, take(rows, 6, length - 6), slot=2, pending=0)
        want = layer.window(op, take(rows, length, 4), slot=2, pending=1)
        assert torch.equal(layer.window(op, take(rows, length, 4), slot=slot, pending=0), want)


@each_op
def test_commit_of_nothing_copies_and_of_itself_changes_nothing(op: Any) -> None:
    layer = Layer.make(TINY, torch.float32)
    layer.prefill(op, layer.rows(6), slot=1)
    before = layer.twin()
    op.commit(layer.st, ints(1), ints(1), ints(0))
    assert torch.equal(layer.st.state[1], before.st.state[1])
    op.commit(layer.st, ints(1), ints(2), ints(0))
    assert torch.equal(layer.st.state[2], before.st.state[1])
    assert torch.equal(layer.st.conv_rows[2, :3], before.st.conv_rows[1, :3])


@each_op
def test_prefill_in_parts_equals_prefill_in_one(op: Any) -> None:
    layer = Layer.make(SHAPES[0], torch.float32)
    rows = layer.rows(200)
    whole = layer.prefill(op, rows, slot=1)
    parts, at = [], 0
    for count in (64, 37, 99):
        parts.append(layer.prefill(op, take(rows, at, count), slot=2, fresh=at == 0))
        at += count
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.st.state[2], layer.st.state[1], atol=1e-5, rtol=1e-5)
    assert torch.equal(layer.st.conv_rows[2, :3], layer.st.conv_rows[1, :3])


@each_op
@each_dtype
def test_prefill_cut_at_multiples_of_64_is_the_same_to_the_bit(op: Any, dtype: torch.dtype) -> None:
    layer = Layer.make(SHAPES[0], dtype)
    rows = layer.rows(150)
    whole = layer.prefill(op, rows, slot=1)
    # The second sequence comes in three calls, each beside another sequence.
    parts = []
    for start, count in ((0, 64), (64, 64), (128, 22)):
        batch = [torch.cat([c, x]) for c, x in zip(layer.rows(9), take(rows, start, count), strict=True)]
        index = (ints(3, 2), torch.tensor([True, start == 0]), ints(0, 9), ints(7, count))
        parts.append(op.prefill(*batch, layer.weights, layer.st, *index)[9:])
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(layer.st.state[2], layer.st.state[1])


@needs_native
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 90), min_size=1, max_size=5), threads=st.integers(1, 2))
def test_native_prefill_may_be_cut_anywhere_and_equals_windows(cuts: list[int], threads: int) -> None:
    layer = Layer.make(TINY, torch.bfloat16)
    rows = layer.rows(sum(cuts))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = layer.prefill(NATIVE, rows, slot=1)
        at, parts = 0, []
        for count in cuts:
            parts.append(layer.prefill(NATIVE, take(rows, at, count), slot=2, fresh=at == 0))
            at += count
        first = layer.prefill(NATIVE, take(rows, 0, 1), slot=3)
        rest = layer.decode(NATIVE, take(rows, 1, at - 1), slot=3, pending=0) if at > 1 else whole[:0]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(parts), whole) and torch.equal(torch.cat([first, rest]), whole)
    assert torch.equal(layer.st.state[2], layer.st.state[1])
    assert torch.equal(layer.committed(NATIVE, 3, min(at - 1, 1))[0], layer.st.state[1])


@needs_native
def test_native_results_do_not_depend_on_the_thread_count() -> None:
    """Large enough that the second thread does take part."""
    shape = DeltaShape(Hk=4, Hv=8, dk=64, dv=64)
    layers = [Layer.make(shape, torch.bfloat16) for _ in range(2)]
    rows = layers[0].rows(24)
    index = (ints(1, 2, 3), ints(0, 0, 0), ints(0, 8, 16), ints(8, 8, 8), WINDOW)
    before, outs = torch.get_num_threads(), []
    for threads, layer in zip((1, 2), layers, strict=True):
        layer.st.state.zero_()
        layer.st.conv_rows.zero_()
        torch.set_num_threads(threads)
        try:
            outs.append(NATIVE.window(*rows, layer.weights, layer.st, *index))
        finally:
            torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])

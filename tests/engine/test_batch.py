"""Index tensors of a pass: by hand, on the host against on the device, and what is padding."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cache.base import blocks_for
from paceline.engine.batch import BatchBuilder
from paceline.engine.layout import WindowLayout
from paceline.engine.plan import PrefillChunk, Window
from paceline.engine.step import window_ids
from tests.engine.sequences import decoding, make

BS = 8


def builder(max_blocks: int = 16) -> BatchBuilder:
    return BatchBuilder(block_size=BS, num_slots=17, max_blocks=max_blocks, device="cpu")


def test_windows_by_hand() -> None:
    a = decoding(7, blocks=[3, 5], slot=2, pending=1)
    b = decoding(1, blocks=[4], slot=1, pending=3)
    batch = builder().build_windows([Window(a, 3), Window(b, 1)])
    assert batch.kind == "window"
    assert batch.positions.tolist() == [7, 8, 9, 1]
    assert batch.row_seq.tolist() == [0, 0, 0, 1]
    assert batch.row_first.tolist() == [0, 0, 0, 0]
    assert batch.row_last.tolist() == [7, 8, 9, 1]
    assert batch.slot_mapping.tolist() == [3 * BS + 7, 5 * BS, 5 * BS + 1, 4 * BS + 1]
    assert batch.block_tables.tolist() == [[3, 5], [4, 0]]
    assert (batch.slots.tolist(), batch.pending.tolist()) == ([2, 1], [1, 3])
    assert (batch.row_start.tolist(), batch.row_count.tolist()) == ([0, 3], [3, 1])
    assert not batch.fresh.any()
    assert (batch.max_rows, batch.max_context) == (3, 10)


def test_prefill_by_hand() -> None:
    a, b = make(20), make(3)
    for sequence, slot, blocks in ((a, 1, [1, 2, 3]), (b, 2, [7])):
        sequence.slot, sequence.max_new_tokens = slot, 4
        sequence.set_blocks(blocks)
    a.commit_prompt(6)
    batch = builder().build_prefill([PrefillChunk(a, 6, 4), PrefillChunk(b, 0, 3)])
    assert batch.kind == "prefill"
    assert batch.positions.tolist() == [6, 7, 8, 9, 0, 1, 2]
    assert batch.slot_mapping.tolist() == [14, 15, 16, 17, 56, 57, 58]
    assert batch.fresh.tolist() == [False, True]
    assert batch.pending.tolist() == [0, 0]
    assert (batch.max_rows, batch.max_context) == (4, 10)


def test_what_a_proposer_is_told() -> None:
    layout = builder().build_drafts([decoding(7, [3, 5], 2), decoding(20, [1, 2, 4], 1)], 4)
    assert layout.lengths.tolist() == [7, 20]
    assert layout.slots.tolist() == [2, 1]
    assert layout.block_tables.tolist() == [[3, 5, 0], [1, 2, 4]]
    assert layout.max_context == 25


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=5))
def test_few_rows_are_laid_out_as_many(windows: list[tuple[int, int]]) -> None:
    """The lists that serve a few rows give what numpy gives for any number."""
    sequences = [
        decoding(length, blocks=list(range(10 * i + 1, 10 * i + 11)), slot=i + 1, pending=i % 2)
        for i, (length, _) in enumerate(windows)
    ]
    starts, counts = [length for length, _ in windows], [rows for _, rows in windows]
    build = builder()
    few, many = build._index_of_few(sequences, starts, counts), build._index(sequences, starts, counts)
    for mine, others in zip(few, many, strict=True):
        assert torch.equal(mine, others) and mine.is_contiguous()


@pytest.mark.parametrize("rows", [(3, 3), (3, 1), (1, 2)])
def test_ids_of_windows(rows: tuple[int, int]) -> None:
    """Each window's anchor, then as many drafts as it has room for."""
    windows = [Window(decoding(7, [3, 5], 2), rows[0]), Window(decoding(1, [4], 1), rows[1])]
    ids = window_ids(
        torch.tensor([50, 60]), torch.tensor([[51, 52], [61, 62]]), builder().build_windows(windows)
    )
    assert ids.tolist() == [*range(50, 50 + rows[0]), *range(60, 60 + rows[1])]
    assert ids.dtype == torch.int64


def test_every_tensor_is_int64_and_contiguous() -> None:
    batch = builder().build_windows([Window(decoding(7, [3, 5], 2), 3), Window(decoding(1, [4], 1), 1)])
    for name in ("positions", "row_seq", "row_first", "row_last", "slot_mapping", "block_tables", "slots",
                 "pending", "row_start", "row_count"):  # fmt: skip
        tensor = getattr(batch, name)
        assert tensor.dtype == torch.int64 and tensor.is_contiguous(), name
    assert batch.fresh.dtype == torch.bool


def test_a_changed_table_is_seen_and_an_old_batch_keeps_its_own() -> None:
    build = builder()
    sequence = decoding(4, [3, 5], 2)
    first = build.build_windows([Window(sequence, 1)])
    sequence.set_blocks([6])
    assert build.build_windows([Window(sequence, 1)]).block_tables.tolist() == [[6]]
    assert first.block_tables.tolist() == [[3, 5]]
    wide = decoding(20, [1, 2, 4], 1)
    both = build.build_windows([Window(wide, 1), Window(sequence, 1)])
    assert both.block_tables.tolist() == [[1, 2, 4], [6, 0, 0]]
    other = decoding(4, [7], 2)  # the slot has a new owner, with a table of the same age
    other.table_version = sequence.table_version
    assert build.build_windows([Window(other, 1)]).block_tables.tolist() == [[7]]


@st.composite
def window_lists(draw: st.DrawFn) -> list[Window]:
    windows = []
    for slot in range(1, 1 + draw(st.integers(1, 5))):
        length, rows = draw(st.integers(1, 40)), draw(st.integers(1, 4))
        blocks = list(range(slot * 10, slot * 10 + blocks_for(length + rows, BS) + draw(st.integers(0, 1))))
        windows.append(Window(decoding(length, blocks, slot, draw(st.integers(0, 4))), rows))
    return windows


@settings(max_examples=60, deadline=None)
@given(windows=window_lists(), spare=st.integers(0, 2), wider=st.integers(0, 2))
def test_packed_and_padded_layouts_agree_row_by_row(windows: list[Window], spare: int, wider: int) -> None:
    packed = builder().build_windows(windows)
    layout = WindowLayout(
        num_seqs=len(windows) + spare, max_rows=4 + wider, max_blocks=8, block_size=BS, max_context=64,
        device="cpu",
    )  # fmt: skip
    layout.load(windows)
    padded = layout.batch()
    live = padded.row_last >= padded.row_first
    for name in ("positions", "row_seq", "row_first", "row_last", "slot_mapping"):
        assert torch.equal(getattr(padded, name)[live], getattr(packed, name)), name
    count = len(windows)
    for name in ("slots", "pending", "row_count"):
        assert torch.equal(getattr(padded, name)[:count], getattr(packed, name)), name
        assert not getattr(padded, name)[count:].any(), f"{name} of padding sequences"
    width = packed.block_tables.shape[1]
    assert torch.equal(padded.block_tables[:count, :width], packed.block_tables)
    assert not padded.block_tables[:count, width:].any()
    assert not padded.slot_mapping[~live].any() and not padded.positions[~live].any()
    assert (padded.row_last[~live] < padded.row_first[~live]).all()


def test_a_loaded_layout_moves_on_by_itself() -> None:
    """Two steps on the device give what the host lays out after the same two commits."""
    sequences = [decoding(7, [1, 2, 3], 1), decoding(12, [4, 5, 6], 2)]
    layout = WindowLayout(num_seqs=3, max_rows=3, max_blocks=3, block_size=BS, max_context=24, device="cpu")
    layout.load([Window(s, 3) for s in sequences])
    layout.advance(torch.tensor([3, 1, 0]))
    for sequence, tokens in zip(sequences, ([5, 6, 7], [8]), strict=True):
        sequence.commit(tokens)
    moved = layout.batch()
    layout.load([Window(s, 3) for s in sequences])
    for name in ("positions", "slot_mapping", "pending", "row_last"):
        assert torch.equal(getattr(moved, name), getattr(layout.batch(), name)), name


def test_a_bucket_forgets_whom_it_held_before() -> None:
    layout = WindowLayout(num_seqs=2, max_rows=1, max_blocks=3, block_size=BS, max_context=24, device="cpu")
    first, second = decoding(17, [1, 2, 3], 1), decoding(4, [4], 2)
    layout.load([Window(first, 1), Window(second, 1)])
    layout.load([Window(second, 1)])
    assert layout.block_tables.tolist() == [[4, 0, 0], [0, 0, 0]]
    assert layout.slots.tolist() == [2, 0] and layout.rows.tolist() == [1, 0]
    far = decoding(9, [5, 6], 40)  # the engine has more slots than the bucket has places
    layout.load([Window(far, 1), Window(second, 1)])
    assert layout.block_tables.tolist() == [[5, 6, 0], [4, 0, 0]]
    assert layout.slots.tolist() == [40, 2]


def test_a_bucket_that_is_too_small_is_a_fault() -> None:
    layout = WindowLayout(num_seqs=1, max_rows=2, max_blocks=2, block_size=BS, max_context=16, device="cpu")
    window = Window(decoding(3, [1], 1), 2)
    with pytest.raises(AssertionError, match="bucket of 1"):
        layout.load([window, window])
    with pytest.raises(AssertionError, match="2 at most"):
        layout.load([Window(window.sequence, 3)])


def test_laying_out_one_sequence_is_cheap() -> None:
    """Once a decode step: 60 us are the budget on an idle machine, several times that is a regression."""
    build = builder(max_blocks=512)
    window = Window(decoding(4000, list(range(1, 502)), 1), 8)
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        build.build_windows([window])
        best = min(best, time.perf_counter() - start)
    assert best < 200e-6

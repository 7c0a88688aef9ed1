"""Bytes from numbers alone, and the tensors that must agree with them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from paceline.cache.memory import derive_num_blocks, memory_budget
from paceline.cache.tensors import CacheShape, CacheTensors
from paceline.errors import CapacityError
from tests.cache.shapes import BIG, BIG_DRAFTER, TINY, head, tiny_shape

MiB = 2**20


def test_bytes_of_the_27b_are_the_published_ones() -> None:
    shape = CacheShape.of(BIG, block_size=64, num_drafts=10)
    assert shape.state_bytes_per_slot == 144 * MiB  # 48 layers x 48 heads x 128 x 128 x 4
    assert shape.history_bytes_per_slot == 48 * 10240 * 3 * 2
    assert shape.bytes_per_block == 64 * 64 * 1024  # 64 KiB a token
    with_drafter = CacheShape.of(BIG, BIG_DRAFTER, head(BIG), block_size=64, num_drafts=10)
    assert with_drafter.bytes_per_block - shape.bytes_per_block == 64 * (20480 + 4096)


def test_rollback_of_the_27b_costs_at_most_15_percent_of_the_state() -> None:
    shape = CacheShape.of(BIG, block_size=64, num_drafts=10)
    assert shape.rollback_bytes_per_slot == 48 * 11 * (8192 * 2 + 10240 * 2 + 2 * 48 * 4)
    assert shape.rollback_bytes_per_slot / shape.state_bytes_per_slot <= 0.15


@pytest.mark.parametrize("factor", [2, 8])
def test_rollback_has_no_term_in_rows_times_state(factor: int) -> None:
    """With both state dimensions times f, the state grows f^2-fold and the rows at most f-fold."""
    larger = dataclasses.replace(BIG, key_dim=BIG.key_dim * factor, value_dim=BIG.value_dim * factor)
    small, large = (CacheShape.of(spec, block_size=64, num_drafts=10) for spec in (BIG, larger))
    assert large.state_bytes_per_slot == factor**2 * small.state_bytes_per_slot
    assert large.rollback_bytes_per_slot <= factor * small.rollback_bytes_per_slot


@pytest.mark.parametrize("proposers", [False, True])
def test_allocated_bytes_are_the_predicted_ones(proposers: bool) -> None:
    shape = tiny_shape(proposers=proposers)
    tensors = CacheTensors.allocate(shape, num_blocks=5, num_slots=3, device="cpu")
    sizes = [
        sum(t.numel() * t.element_size() for t in stacks)
        for stacks in (tensors.block_stacks, tensors.slot_stacks)
    ]
    assert sizes == [5 * shape.bytes_per_block, 3 * shape.bytes_per_slot]
    assert len(tensors.target.kv) == len(TINY.full_layers)
    assert len(tensors.target.delta) == len(TINY.linear_layers)
    assert (len(tensors.drafter), tensors.mtp is not None) == ((3, True) if proposers else (0, False))


def test_views_are_contiguous_and_do_not_overlap() -> None:
    tensors = CacheTensors.allocate(tiny_shape(), num_blocks=5, num_slots=3, device="cpu")
    assert tensors.mtp is not None
    pairs = [*tensors.target.kv, *tensors.drafter, tensors.mtp]
    views = [t for pair in pairs for t in pair]
    views += [t for state in tensors.target.delta for t in state.tensors()]
    for i, view in enumerate(views):
        assert view.is_contiguous()
        view.fill_(i)
    assert all(bool((view == i).all()) for i, view in enumerate(views))
    assert tensors.drafter[0][0].shape == (5, 8, 2, 4)
    assert tensors.target.delta[0].rows == 4


@pytest.mark.parametrize("poison", [True, False])
def test_fresh_memory_is_poisoned_on_demand(monkeypatch: pytest.MonkeyPatch, poison: bool) -> None:
    monkeypatch.setenv("PACELINE_POISON", "1" if poison else "0")
    tensors = CacheTensors.allocate(tiny_shape(), num_blocks=3, num_slots=2, device="cpu")
    for stack in (*tensors.block_stacks, *tensors.slot_stacks):
        assert bool((stack.isnan() if poison else stack == 0).all())


def test_kv_dtype_overrides_the_models() -> None:
    shape = CacheShape.of(TINY, block_size=8, num_drafts=0, kv_dtype=torch.float32)
    assert shape.target.dtype == torch.float32 and shape.dtype == torch.bfloat16
    assert shape.window_rows == 1


def test_blocks_for_every_sequence_at_full_length_if_the_budget_allows() -> None:
    shape = tiny_shape()
    assert derive_num_blocks(shape, max_num_seqs=4, max_model_len=20, budget_bytes=2**40) == 4 * 3 + 1


def test_blocks_are_capped_by_the_budget() -> None:
    shape = tiny_shape()
    budget = 5 * shape.bytes_per_slot + 7 * shape.bytes_per_block + 1
    assert derive_num_blocks(shape, max_num_seqs=4, max_model_len=10**6, budget_bytes=budget) == 7


def test_a_budget_for_nothing_is_an_error_that_names_the_fix() -> None:
    with pytest.raises(CapacityError, match="lower max_num_seqs"):
        derive_num_blocks(tiny_shape(), max_num_seqs=4, max_model_len=10, budget_bytes=1000)


def test_memory_budget_is_a_share_of_what_is_free() -> None:
    half = memory_budget("cpu", share=0.5)
    assert half > 0
    assert memory_budget("cpu", share=0.5, reserve_bytes=2**60) == 0

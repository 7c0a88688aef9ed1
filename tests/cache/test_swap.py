"""Host memory: a sequence comes back byte for byte, into other blocks and another slot, within a limit."""

from __future__ import annotations

import pytest
import torch

from paceline.cache.swap import HostSwap
from paceline.cache.tensors import CacheTensors
from paceline.errors import CapacityError
from tests.cache.shapes import tiny_shape


def random_tensors() -> CacheTensors:
    """A cache full of random bytes, NaN patterns among them."""
    tensors = CacheTensors.allocate(tiny_shape(), num_blocks=8, num_slots=4, device="cpu")
    for stack in (*tensors.block_stacks, *tensors.slot_stacks):
        stack.copy_(torch.randint(0, 256, (stack.numel() * stack.element_size(),), dtype=torch.uint8)
                    .view(stack.dtype).view(stack.shape))  # fmt: skip
    return tensors


def content(tensors: CacheTensors, blocks: list[int], slot: int) -> list[bytes]:
    """Every byte that belongs to a sequence, read through the views that the models get."""
    assert tensors.mtp is not None
    pairs = [*tensors.target.kv, *tensors.drafter, tensors.mtp]
    parts = [t[blocks] for pair in pairs for t in pair]
    parts += [t[slot] for state in tensors.target.delta for t in state.tensors()]
    return [part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts]


def test_comes_back_byte_for_byte_elsewhere() -> None:
    tensors = random_tensors()
    swap = HostSwap(tensors, limit_bytes=2**30)
    mine, other = content(tensors, [5, 2, 7], 1), content(tensors, [1, 3], 2)
    extras = object()
    handle = swap.save([5, 2, 7], 1, extras)
    assert handle.num_blocks == 3
    assert swap.used_bytes == handle.bytes == swap.bytes_for(3)
    for stack in tensors.block_stacks:
        stack[:, [5, 2, 7]] = 0
    for stack in tensors.slot_stacks:
        stack[:, 1] = 0
    assert swap.restore(handle, [4, 5, 6], 3) is extras
    assert content(tensors, [4, 5, 6], 3) == mine
    assert content(tensors, [1, 3], 2) == other, "a restore touched someone else"
    assert swap.used_bytes == 0


def test_a_sequence_without_any_kv_yet_moves_too() -> None:
    tensors = random_tensors()
    swap = HostSwap(tensors, limit_bytes=2**30)
    mine = content(tensors, [], 1)
    swap.restore(swap.save([], 1), [], 2)
    assert content(tensors, [], 2) == mine


def test_the_limit_holds_and_changes_nothing_when_it_is_met() -> None:
    tensors = random_tensors()
    swap = HostSwap(tensors, limit_bytes=0)
    swap.limit_bytes = swap.bytes_for(2)
    handle = swap.save([1, 2], 1)
    with pytest.raises(CapacityError, match="host_swap_gib"):
        swap.save([3], 2)
    assert swap.used_bytes == handle.bytes
    swap.drop(handle)
    swap.save([3], 2)


def test_a_copy_is_dropped_once() -> None:
    swap = HostSwap(random_tensors(), limit_bytes=2**30)
    handle = swap.save([1], 1)
    swap.drop(handle)
    with pytest.raises(AssertionError, match="twice"):
        swap.drop(handle)

"""Host memory behind the cache: everything of one sequence out of the device and back, byte for byte.

Nothing is recomputed when a sequence comes back. Recomputing would send generated positions through the
prompt's arithmetic and could change the text; a copy cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.cache.tensors import CacheTensors
from paceline.errors import CapacityError


@dataclass(frozen=True, slots=True, eq=False)
class SwapHandle:
    """One sequence in host memory."""

    blocks: tuple[torch.Tensor, ...]
    """One a block stack of the cache: [2 * layers, blocks, ...]."""
    slot: tuple[torch.Tensor, ...]
    """One a slot stack of the cache: [layers, ...]."""
    extras: object
    """What the engine keeps for the sequence besides (sampler, proposer), as it was given."""

    @property
    def num_blocks(self) -> int:
        """Blocks that are needed to restore it."""
        return self.blocks[0].shape[1]

    @property
    def bytes(self) -> int:
        """Host memory that the copy takes, extras aside."""
        return sum(t.numel() * t.element_size() for t in (*self.blocks, *self.slot))


class HostSwap:
    """Copies of preempted sequences, up to a limit in bytes.

    A copy holds the KV of target, drafter and multi-token head, the recurrent states with the rows not yet
    replayed, and the conv inputs. On a GPU the copies go through pinned memory; `save` waits for them, as
    the blocks are handed to someone else right after.
    """

    def __init__(self, tensors: CacheTensors, limit_bytes: int) -> None:
        self._tensors = tensors
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def bytes_for(self, num_blocks: int) -> int:
        """Host memory that a sequence of `num_blocks` blocks takes."""
        shape = self._tensors.shape
        return num_blocks * shape.bytes_per_block + shape.bytes_per_slot

    def save(self, blocks: Sequence[int], slot: int, extras: object = None) -> SwapHandle:
        """Copy the blocks (those that hold something, in table order) and the slot of one sequence.

        Raises `CapacityError` when the limit would be passed; nothing has changed then.
        """
        needed = self.bytes_for(len(blocks))
        if self.used_bytes + needed > self.limit_bytes:
            raise CapacityError(
                f"no host memory for a preempted sequence of {needed / 2**20:.1f} MiB: of "
                f"{self.limit_bytes / 2**20:.1f} MiB {self.used_bytes / 2**20:.1f} are in use; "
                "raise host_swap_gib or num_blocks, or lower max_num_seqs"
            )
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        handle = SwapHandle(
            blocks=tuple(_save_blocks(stack, index) for stack in self._tensors.block_stacks),
            slot=tuple(_to_host(stack[:, slot]) for stack in self._tensors.slot_stacks),
            extras=extras,
        )
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.used_bytes += handle.bytes
        return handle

    def restore(self, handle: SwapHandle, blocks: Sequence[int], slot: int) -> object:
        """Copy back into other blocks (as many as were saved) and another slot; the handle is spent.

        Returns the extras.
        """
        assert len(blocks) == handle.num_blocks, "a sequence comes back into as many blocks as it left"
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        for stack, saved in zip(self._tensors.block_stacks, handle.blocks, strict=True):
            for layer, part in zip(stack, saved, strict=True):
                layer.index_copy_(0, index, part.to(self._device, non_blocking=True))
        for stack, saved in zip(self._tensors.slot_stacks, handle.slot, strict=True):
            stack[:, slot].copy_(saved, non_blocking=True)
        self.drop(handle)
        return handle.extras

    def drop(self, handle: SwapHandle) -> None:
        """Forget a copy."""
        self.used_bytes -= handle.bytes
        assert self.used_bytes >= 0, "a copy was dropped twice"

    @property
    def _device(self) -> torch.device:
        return self._tensors.block_stacks[0].device


def _save_blocks(stack: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[2 * layers, blocks, ...] on the host, gathered layer by layer: long sequences need little scratch."""
    shape = (stack.shape[0], len(index), *stack.shape[2:])
    host = torch.empty(shape, dtype=stack.dtype, pin_memory=stack.is_cuda)
    for layer, part in zip(stack, host, strict=True):
        part.copy_(layer.index_select(0, index), non_blocking=stack.is_cuda)
    return host


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A host copy that shares nothing with `tensor`; from a GPU into pinned memory, not yet waited for."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=tensor.is_cuda)

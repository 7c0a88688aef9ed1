"""The cache's tensors and, from numbers alone, their bytes.

All layers of a kind share one allocation, layer by layer, so that a sequence moves to host memory with a
few copies (`cache.swap`); models see one view a layer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from paceline.errors import CapacityError
from paceline.kernels.gated_delta.base import DeltaShape, DeltaState
from paceline.models.base import KVPair, TargetCache
from paceline.models.spec import DrafterSpec, MTPSpec, TargetSpec


@dataclass(frozen=True, slots=True)
class KVShape:
    """KV caches of one kind: how many layers, and what a position of one holds."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_position(self) -> int:
        """Bytes of keys and values, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What blocks and slots hold for a target and its proposer."""

    target: KVShape
    drafter: KVShape | None
    mtp: KVShape | None
    delta: DeltaShape | None
    """None where no layer is recurrent: slots then hold nothing."""
    delta_layers: int
    dtype: torch.dtype
    """Of the rows of a window; states are fp32."""
    block_size: int
    window_rows: int
    """W: rows of the longest window, the anchor and n drafts."""

    @classmethod
    def of(
        cls,
        spec: TargetSpec,
        drafter: DrafterSpec | None = None,
        mtp: MTPSpec | None = None,
        *,
        block_size: int,
        num_drafts: int,
        kv_dtype: torch.dtype | None = None,
    ) -> Self:
        """Shape from the models' numbers; `kv_dtype` None keeps KV as each model computes."""
        return cls(
            target=_kv_shape(spec, len(spec.full_layers), kv_dtype),
            drafter=_kv_shape(drafter, drafter.num_layers, kv_dtype) if drafter else None,
            mtp=_kv_shape(mtp, 1, kv_dtype) if mtp else None,
            delta=spec.delta_shape if spec.linear_layers else None,
            delta_layers=len(spec.linear_layers),
            dtype=spec.dtype,
            block_size=block_size,
            window_rows=num_drafts + 1,
        )

    @property
    def kv(self) -> tuple[KVShape, ...]:
        """KV shapes of every model that has one."""
        return tuple(shape for shape in (self.target, self.drafter, self.mtp) if shape is not None)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: target's, drafter's and head's KV of `block_size` positions."""
        return self.block_size * sum(shape.bytes_per_position for shape in self.kv)

    @property
    def state_bytes_per_slot(self) -> int:
        """Bytes of the recurrent state of one sequence, all layers."""
        return self.delta_layers * self.delta.state_bytes if self.delta else 0

    @property
    def history_bytes_per_slot(self) -> int:
        """Bytes of the conv inputs that plain decoding needs too, all layers."""
        return self.delta_layers * self.delta.history_bytes(self.dtype) if self.delta else 0

    @property
    def rollback_bytes_per_slot(self) -> int:
        """Bytes of the window rows by which rejected drafts are taken back, all layers."""
        if self.delta is None:
            return 0
        return self.delta_layers * self.delta.rollback_bytes(self.window_rows, self.dtype)

    @property
    def bytes_per_slot(self) -> int:
        """Everything that a slot takes."""
        return self.state_bytes_per_slot + self.history_bytes_per_slot + self.rollback_bytes_per_slot


@dataclass(frozen=True, slots=True)
class CacheTensors:
    """Allocated cache: what the models are given, and the stacks behind it."""

    shape: CacheShape
    target: TargetCache
    drafter: list[KVPair]
    mtp: KVPair | None
    block_stacks: tuple[torch.Tensor, ...]
    """Each [2 * layers, num_blocks, block_size, kv_heads, head_dim]: keys and values in turn."""
    slot_stacks: tuple[torch.Tensor, ...]
    """Each [layers, slots, ...]: one a field of `DeltaState`, in its order."""

    @classmethod
    def allocate(
        cls, shape: CacheShape, *, num_blocks: int, num_slots: int, device: torch.device | str
    ) -> Self:
        """Allocate `num_blocks` blocks and `num_slots` slots, the null ones included.

        What memory holds before it is written is nobody's business: with PACELINE_POISON=1 it is NaN.
        Raises `CapacityError` when the device has not that much.
        """
        try:
            blocks = tuple(_kv_stack(kv, num_blocks, shape.block_size, device) for kv in shape.kv)
            slots = tuple(_slot_stacks(shape, num_slots, device))
        except (torch.OutOfMemoryError, MemoryError) as error:
            needed = num_blocks * shape.bytes_per_block + num_slots * shape.bytes_per_slot
            raise CapacityError(
                f"{num_blocks} KV blocks and {num_slots} slots need {needed / 2**30:.1f} GiB, which {device} "
                "does not have: lower num_blocks or max_num_seqs"
            ) from error
        pairs = [[(stack[i], stack[i + 1]) for i in range(0, len(stack), 2)] for stack in blocks]
        delta = [DeltaState(*(stack[layer] for stack in slots)) for layer in range(shape.delta_layers)]
        return cls(
            shape=shape,
            target=TargetCache(kv=pairs[0], delta=delta),
            drafter=pairs[1] if shape.drafter else [],
            mtp=pairs[-1][0] if shape.mtp else None,
            block_stacks=blocks,
            slot_stacks=slots,
        )


def _kv_shape(spec: TargetSpec | DrafterSpec | MTPSpec, layers: int, kv_dtype: torch.dtype | None) -> KVShape:
    return KVShape(layers, spec.kv_heads, spec.head_dim, kv_dtype or spec.dtype)


def _kv_stack(kv: KVShape, num_blocks: int, block_size: int, device: torch.device | str) -> torch.Tensor:
    return _fresh((2 * kv.layers, num_blocks, block_size, kv.kv_heads, kv.head_dim), kv.dtype, device)


def _slot_stacks(shape: CacheShape, slots: int, device: torch.device | str) -> Iterator[torch.Tensor]:
    """One stack a field of `DeltaState`; none without recurrent layers."""
    if shape.delta is None:
        return
    one = DeltaState.allocate(1, shape.window_rows, shape.delta, shape.dtype, "meta")
    for tensor in one.tensors():
        yield _fresh((shape.delta_layers, slots, *tensor.shape[1:]), tensor.dtype, device)


def _fresh(dims: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """New memory: NaN when poisoned; else zeros, which on a CPU take pages only when first written."""
    if os.environ.get("PACELINE_POISON") == "1":
        return torch.full(dims, float("nan"), dtype=dtype, device=device)
    if torch.device(device).type != "cpu":
        return torch.zeros(dims, dtype=dtype, device=device)
    count = int(np.prod(dims, dtype=np.int64))
    return torch.from_numpy(np.zeros(count * dtype.itemsize, np.uint8)).view(dtype).view(dims)

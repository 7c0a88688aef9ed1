"""Triton kernel for one decoding step of a rollout: store a row a slot and attend to the slot's rows.

A program owns one key head of one slot and all query heads that share it, so that every key and value up to
the slot's position is read once, and rows past it not at all. Programs share nothing: the row that is stored
is attended to from registers. There is no split over the keys of a slot, because a rollout has thousands of
slots. The reference is `paceline.train.modules.attend_slots.plain_attend_slots`.
"""

# Kernels are no Python functions: their arguments have Triton's types, not Python's.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS: tl.constexpr = tl.constexpr(16)
"""Query heads of a program: what the matrix unit takes at least."""


@triton.jit
def _attend_kernel(
    q, k, v, positions, keys, values, out, length, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """scale: of the scores, times log2(e), because weights are powers of two here."""
    slot = tl.program_id(0)
    pair = tl.cast(slot, tl.int64) * tl.num_programs(1) + tl.program_id(1)
    position = tl.load(positions + slot).to(tl.int32)
    d, row, ahead = tl.arange(0, DIM), tl.arange(0, _ROWS), tl.arange(0, BLOCK)
    keys += pair * length * DIM
    values += pair * length * DIM
    heads = (pair * GROUP + row[:, None]) * DIM + d[None, :]
    real = row[:, None] < GROUP
    query = tl.load(q + heads, mask=real, other=0.0)
    own_k, own_v = tl.load(k + pair * DIM + d), tl.load(v + pair * DIM + d)
    tl.store(keys + position * DIM + d, own_k)
    tl.store(values + position * DIM + d, own_v)
    # The softmax begins with the row itself, so that its maximum is finite from the start.
    top = tl.sum(query.to(tl.float32) * own_k.to(tl.float32)[None, :], 1) * scale
    total = tl.full([_ROWS], 1.0, tl.float32)
    mixed = tl.zeros([_ROWS, DIM], tl.float32) + own_v.to(tl.float32)[None, :]
    for start in range(0, position, BLOCK):
        at = start + ahead
        past = at < position
        key = tl.load(keys + at[None, :] * DIM + d[:, None], mask=past[None, :], other=0.0)
        value = tl.load(values + at[:, None] * DIM + d[None, :], mask=past[:, None], other=0.0)
        scores = tl.where(past[None, :], tl.dot(query, key) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights, shrink = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * shrink[:, None])
        top = higher
    tl.store(out + heads, (mixed / total[:, None]).to(out.dtype.element_ty), mask=real)


def _launch(dim: int) -> dict[str, int]:
    """16 kB of keys and values a block and three blocks in flight, whatever the size of a head."""
    block = max(16, min(64, 4096 // dim))
    return {"BLOCK": block, "num_warps": 2 if dim <= 64 else 4, "num_stages": 3}


def attend_slots(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [S, Hq, D], k and v [S, Hkv, D], positions [S] int, keys and values [S, Hkv, L, D] of one dtype, all
    contiguous, D a power of two of at least 16, Hq at most 16 Hkv -> [S, Hq, D]. Scores and sums are fp32;
    weights are rounded to the dtype before they meet the values."""
    slots, heads, length, dim = keys.shape
    group = q.shape[1] // heads
    assert group <= _ROWS.value and keys.is_contiguous() and values.is_contiguous()
    out = torch.empty_like(q)
    scale = dim**-0.5 * math.log2(math.e)
    _attend_kernel[(slots, heads)](
        q, k, v, positions, keys, values, out, length, scale, GROUP=group, DIM=dim, **_launch(dim)
    )
    return out

"""Attention around a paged cache: head norm + rotary, cache writes, the attention, output gate."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from paceline.kernels import build
from paceline.kernels.attention import reference
from paceline.kernels.attention.cpu import CpuAttention


@cache
def native() -> CpuAttention | None:
    """The compiled operators, or None where the reference must run."""
    lib = build.library("attention")
    return CpuAttention(lib) if lib is not None else None


def norm_rope(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    zero_centred: bool,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
) -> Tensor:
    """RMS norm (with a weight) of every head of x [R, H, D] and rotation of its first dims; ``reference``."""
    if x.is_cpu and (cpu := native()) is not None:
        return cpu.norm_rope(x, weight, eps, zero_centred, cos, sin, positions)
    return reference.norm_rope(x, weight, eps, zero_centred, cos, sin, positions)


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write k, v [R, Hkv, D] into the caches [num_blocks, block_size, Hkv, D]; ``reference.store_kv``."""
    if k.is_cpu and (cpu := native()) is not None:
        cpu.store_kv(k, v, k_cache, v_cache, slot_mapping)
    else:
        reference.store_kv(k, v, k_cache, v_cache, slot_mapping)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    row_seq: Tensor,
    row_first: Tensor,
    row_last: Tensor,
    scale: float,
    max_context: int,
) -> Tensor:
    """Row r of q [R, Hq, D] sees positions row_first[r]..row_last[r] of its sequence; see ``reference``."""
    if q.is_cpu and (cpu := native()) is not None:
        return cpu.paged_attention(
            q, k_cache, v_cache, block_tables, row_seq, row_first, row_last, scale, max_context
        )
    return reference.paged_attention(
        q, k_cache, v_cache, block_tables, row_seq, row_first, row_last, scale, max_context
    )


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """x [R, N] times sigmoid(gate [R, H, D], N = H * D); ``reference.sigmoid_gate``."""
    if x.is_cpu and (cpu := native()) is not None:
        return cpu.sigmoid_gate(x, gate)
    return reference.sigmoid_gate(x, gate)

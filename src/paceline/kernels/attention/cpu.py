"""Native CPU operators around a paged cache."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from paceline.kernels import build

BF16 = torch.bfloat16


class CpuAttention:
    """The four operators over one loaded library; same arguments as ``reference``."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._norm_rope = build.declare(lib, "norm_rope_run", "ipiiiiipfippipp")
        self._store_kv = build.declare(lib, "store_kv_run", "pipipppii")
        self._attention = build.declare(lib, "attention_run", "ippppiiiipppiiiifp", checked=True)
        self._sigmoid_gate = build.declare(lib, "sigmoid_gate_run", "ippiipiii")

    def norm_rope(
        self,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        zero_centred: bool,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """x [R, H, D], D contiguous -> contiguous [R, H, D]."""
        rows, heads, dim = x.shape
        row_stride, head_stride, stride = x.stride()
        dtype = x.dtype
        assert stride == 1 and cos.dtype is dtype, (x.stride(), dtype, cos.dtype)
        assert weight is None or (weight.dtype is dtype and weight.shape == (dim,)), (weight, dtype, dim)
        assert cos.is_contiguous() and sin.is_contiguous() and positions.is_contiguous()
        out = torch.empty(rows, heads, dim, dtype=dtype)
        tables = cos.data_ptr(), sin.data_ptr(), cos.shape[1], positions.data_ptr()
        norm = None if weight is None else weight.data_ptr(), eps, zero_centred
        source = x.data_ptr(), row_stride, head_stride, rows, heads, dim
        self._norm_rope(dtype is BF16, *source, *norm, *tables, out.data_ptr())
        return out

    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """k, v [R, Hkv, D], any row stride, into contiguous caches."""
        rows, heads, dim = k.shape
        if k.stride()[1:] != (dim, 1):
            k = k.contiguous()
        if v.stride()[1:] != (dim, 1):
            v = v.contiguous()
        size = k.element_size()
        assert k.dtype is k_cache.dtype and k_cache.is_contiguous() and v_cache.is_contiguous(), k_cache.dtype
        source = k.data_ptr(), k.stride(0) * size, v.data_ptr(), v.stride(0) * size
        target = k_cache.data_ptr(), v_cache.data_ptr(), slot_mapping.data_ptr()
        self._store_kv(*source, *target, rows, heads * dim * size)

    def paged_attention(
        self,
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
        """q [R, Hq, D] contiguous -> [R, Hq, D]; rows read their own keys, ``max_context`` is moot."""
        rows, heads, dim = q.shape
        blocks, block_size, kv_heads, _ = k_cache.shape
        dtype = q.dtype
        assert q.is_contiguous() and block_tables.is_contiguous() and heads % kv_heads == 0, q.shape
        assert k_cache.is_contiguous() and v_cache.is_contiguous() and k_cache.dtype is dtype, k_cache.dtype
        out = torch.empty(rows, heads, dim, dtype=dtype)
        pages = k_cache.data_ptr(), v_cache.data_ptr(), block_tables.data_ptr()
        assert row_seq.is_contiguous() and row_first.is_contiguous() and row_last.is_contiguous()
        lengths = *block_tables.shape, blocks, block_size
        ranges = row_seq.data_ptr(), row_first.data_ptr(), row_last.data_ptr()
        sizes = rows, heads, kv_heads, dim
        wrong = self._attention(
            dtype is BF16, q.data_ptr(), *pages, *lengths, *ranges, *sizes, scale, out.data_ptr()
        )
        assert not wrong, "attention: a row's sequence, range or block is out of bounds"
        return out

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """x [R, N] contiguous, gate [R, H, D] with D contiguous -> [R, N]."""
        rows, heads, dim = gate.shape
        row_stride, head_stride, stride = gate.stride()
        assert stride == 1 and x.is_contiguous() and x.shape[1] == heads * dim, (gate.stride(), x.shape)
        dtype = x.dtype
        out = torch.empty(rows, heads * dim, dtype=dtype)
        source = x.data_ptr(), gate.data_ptr(), row_stride, head_stride
        self._sigmoid_gate(dtype is BF16, *source, out.data_ptr(), rows, heads, dim)
        return out

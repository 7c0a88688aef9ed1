"""The native CPU code of the gated delta operator, called through ctypes (a few microseconds a call)."""

from __future__ import annotations

import ctypes
import struct
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from paceline.kernels import build
from paceline.kernels.gated_delta.base import DeltaState, DeltaWeights

# The structures of cpu.cpp, as bytes.
_WEIGHTS = struct.Struct("@4Pd5q")
_STATE = struct.Struct("@6P8q")
_ROWS = struct.Struct("@5P4q5P3q")

# Packed once an object; the tensors that the bytes point into ride along.
_packed_weights: WeakKeyDictionary[DeltaWeights, tuple[bytes, tuple[Tensor, ...]]] = WeakKeyDictionary()
_packed_states: WeakKeyDictionary[DeltaState, bytes] = WeakKeyDictionary()


def native() -> Native | None:
    """The native operators, or None where the torch reference must run."""
    lib = build.library("gated_delta")
    return None if lib is None else Native(lib)


class Native:
    """``window``, ``prefill`` and ``commit`` with the meaning and arguments of the reference, on the CPU."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._window, self._prefill, self._commit = lib.delta_window, lib.delta_prefill, lib.delta_commit
        self._window.argtypes = self._prefill.argtypes = [ctypes.c_void_p] * 3
        self._commit.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64]

    def window(
        self,
        qkv: Tensor,
        z: Tensor,
        b: Tensor,
        a: Tensor,
        weights: DeltaWeights,
        st: DeltaState,
        slots: Tensor,
        pending: Tensor,
        row_start: Tensor,
        row_count: Tensor,
        max_rows: int,
    ) -> Tensor:
        """As `reference.window`."""
        assert max_rows <= st.rows, f"a window of {max_rows} rows in slots of {st.rows}"
        _check_index(slots, pending, row_start, row_count)
        out = torch.empty((qkv.shape[0], weights.Hv * weights.dv), dtype=qkv.dtype)
        index = (slots.data_ptr(), row_start.data_ptr(), row_count.data_ptr(), pending.data_ptr(), 0)
        rows = _rows(qkv, z, b, a, st, out, *index, slots.shape[0], qkv.shape[0], max_rows)
        failed = self._window(_weights(weights), _state(st, weights), rows)
        assert not failed, "window: a slot, a row or a count is out of range"
        return out

    def prefill(
        self,
        qkv: Tensor,
        z: Tensor,
        b: Tensor,
        a: Tensor,
        weights: DeltaWeights,
        st: DeltaState,
        slots: Tensor,
        fresh: Tensor,
        row_start: Tensor,
        row_count: Tensor,
    ) -> Tensor:
        """As `reference.prefill`."""
        _check_index(slots, row_start, row_count)
        assert fresh.dtype == torch.bool and fresh.is_contiguous()
        out = torch.empty((qkv.shape[0], weights.Hv * weights.dv), dtype=qkv.dtype)
        index = (slots.data_ptr(), row_start.data_ptr(), row_count.data_ptr(), 0, fresh.data_ptr())
        rows = _rows(qkv, z, b, a, st, out, *index, slots.shape[0], qkv.shape[0], 0)
        failed = self._prefill(_weights(weights), _state(st, weights), rows)
        assert not failed, "prefill: a slot or a row is out of range"
        return out

    def commit(self, st: DeltaState, src_slots: Tensor, dst_slots: Tensor, counts: Tensor) -> None:
        """As `reference.commit`."""
        _check_index(src_slots, dst_slots, counts)
        pointers = (src_slots.data_ptr(), dst_slots.data_ptr(), counts.data_ptr())
        failed = self._commit(_state(st), *pointers, src_slots.shape[0])
        assert not failed, "commit: a slot or a count is out of range"


def _check_index(*index: Tensor) -> None:
    for t in index:
        assert t.dtype == torch.int64 and t.is_contiguous(), "index tensors are contiguous int64"


def _rows(qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, st: DeltaState, out: Tensor, *index: int) -> bytes:
    tensors = (qkv, z, b, a)
    strides = []
    for x in tensors:
        row, column = x.stride()
        assert column == 1 and x.dtype == st.k_rows.dtype, "rows are dense and in the model dtype"
        strides.append(row)
    return _ROWS.pack(*(x.data_ptr() for x in tensors), out.data_ptr(), *strides, *index)


def _weights(w: DeltaWeights) -> bytes:
    if packed := _packed_weights.get(w):
        return packed[0]
    conv, norm = w.conv.t().float().contiguous(), w.norm.float().contiguous()
    tensors = (conv, -w.A_log.exp(), w.dt_bias.contiguous(), norm)
    assert w.conv.shape[1] <= 8, "conv kernels wider than 8 are not supported"
    sizes = (w.Hk, w.Hv, w.dk, w.dv, w.conv.shape[1])
    data = _WEIGHTS.pack(*(t.data_ptr() for t in tensors), w.eps, *sizes)
    _packed_weights[w] = data, tensors
    return data


def _state(st: DeltaState, weights: DeltaWeights | None = None) -> bytes:
    if packed := _packed_states.get(st):
        return packed
    Hk, Hv, (dk, dv) = st.k_rows.shape[2], st.v_rows.shape[2], st.state.shape[2:]
    assert weights is None or (weights.Hk, weights.Hv, weights.dk, weights.dv) == (Hk, Hv, dk, dv)
    sizes = (st.slots, st.rows, Hk, Hv, dk, dv, st.history + 1, st.k_rows.dtype == torch.bfloat16)
    assert st.k_rows.dtype in (torch.bfloat16, torch.float32)
    _packed_states[st] = data = _STATE.pack(*(t.data_ptr() for t in st.tensors()), *sizes)
    return data

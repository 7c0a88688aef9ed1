"""Native CPU linear layer: packing and the call (the layout is described in ``cpu.cpp``)."""

from __future__ import annotations

import ctypes

import torch
from torch.nn import functional as F

from paceline.kernels import build
from paceline.kernels.memory import WEIGHTS
from paceline.kernels.product import NativeProduct
from paceline.kernels.rows import interleaved

BLOCK = 16  # outputs that share a register


class _Layer(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("outs", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("panels", ctypes.c_int64),
    )


class CpuLinear:
    """y = x Wᵀ with fp32 sums whose order depends on nothing but K, so a row never sees its neighbours.

    weight: [N, K] bfloat16 or float32, copied into packed memory; the caller may drop its own.
    """

    def __init__(self, weight: torch.Tensor, lib: ctypes.CDLL, *, gated: bool = False) -> None:
        """gated: the weight's rows are all gates, then as many ups, multiples of 16 each, and the layer gives
        silu(gate) * up in x's dtype."""
        outs, self.in_features = weight.shape
        self.out_features = outs // 2 if gated else outs
        self.dtype = weight.dtype
        self.kind = build.ISA_NAMES[lib.paceline_isa()] + ("-gated" if gated else "")
        name = "linear_gated_run" if gated else "linear_run"
        self._run = build.declare(lib, name, "pipiip")
        bf16 = int(weight.dtype is torch.bfloat16)  # the kernel's kinds: 0 fp32, 1 bf16, 2 bf16 -> fp32
        self._kinds = {None: bf16, weight.dtype: bf16}
        if gated:
            self._packed, self._layer = _pack(interleaved(weight), 2, outs // (2 * BLOCK))
        else:
            self._kinds[torch.float32] = 2 * bf16
            self._packed, self._layer = _pack(weight, lib.linear_max_width())
        self._address = ctypes.addressof(self._layer)
        self._pad = self._layer.k - self.in_features
        product = NativeProduct(build.address(lib, name), self._address, bf16, self.out_features, 2 * bf16)
        self.product = None if self._pad else product  # padded inputs are made here

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] in the weight's dtype -> [R, N] in ``out_dtype``: x's dtype (the default) or float32."""
        # Written for few microseconds: a decode step makes dozens of these calls.
        rows, width = x.shape
        assert width == self.in_features and x.dtype is self.dtype, (x.shape, x.dtype, self.in_features)
        if self._pad:
            x = F.pad(x, (0, self._pad))
        row_stride, column_stride = x.stride()
        if column_stride != 1:
            x = x.contiguous()
            row_stride = width
        out = torch.empty(rows, self.out_features, dtype=out_dtype or self.dtype)  # a tuple takes 0.5 us more
        self._run(self._address, self._kinds[out_dtype], x.data_ptr(), row_stride, rows, out.data_ptr())
        return out


def _pack(weight: torch.Tensor, max_width: int, panels: int = 0) -> tuple[torch.Tensor, _Layer]:
    outs, k = weight.shape
    step = 4 // weight.dtype.itemsize  # bf16 goes in pairs
    k += -k % step
    blocks = -(-outs // BLOCK)
    # As many panels as threads divide evenly; how blocks are grouped does not change a sum.
    threads = torch.get_num_threads()
    panels = panels or min(blocks, -(-blocks // (max_width * threads)) * threads)
    packed = WEIGHTS.empty((blocks * BLOCK * k,), weight.dtype)
    pairs = packed.view(torch.float32)  # a pair moves as one 32-bit number
    full = F.pad(weight, (0, k - weight.shape[1], 0, blocks * BLOCK - outs)).contiguous().view(torch.float32)
    for panel in range(panels):
        rows = slice(blocks * panel // panels * BLOCK, blocks * (panel + 1) // panels * BLOCK)
        columns = full[rows].t()
        pairs[rows.start * columns.shape[0] : rows.stop * columns.shape[0]].view(columns.shape).copy_(columns)
    return packed, _Layer(packed.data_ptr(), outs, k, blocks, panels)

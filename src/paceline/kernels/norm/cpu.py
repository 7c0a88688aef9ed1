"""Native CPU RMS norms."""

from __future__ import annotations

import ctypes

import torch

from paceline.kernels import build

BF16 = torch.bfloat16


class CpuNorm:
    """The two operators over one loaded library; same arguments as ``reference``."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._run = build.declare(lib, "norm_run", "iifiipipippp")

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool) -> torch.Tensor:
        """x [R, H], any row stride -> contiguous [R, H]."""
        rows, width = x.shape
        dtype = x.dtype
        assert weight.dtype is dtype and weight.shape[0] == width, (weight.dtype, dtype, weight.shape, width)
        row_stride, column_stride = x.stride()
        assert column_stride == 1 or width == 1
        out = torch.empty(rows, width, dtype=dtype)
        self._run(
            dtype is BF16,
            zero_centred,
            eps,
            rows,
            width,
            x.data_ptr(),
            row_stride,
            None,
            0,
            weight.data_ptr(),
            out.data_ptr(),
            None,
        )
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual [R, H], any row stride -> (normed, residual + x), both contiguous."""
        rows, width = x.shape
        dtype = x.dtype
        assert weight.dtype is dtype is residual.dtype and residual.shape == x.shape, (weight.dtype, dtype)
        x_stride, x_column = x.stride()
        old_stride, old_column = residual.stride()
        assert (x_column == 1 and old_column == 1) or width == 1
        out, total = torch.empty(rows, width, dtype=dtype), torch.empty(rows, width, dtype=dtype)
        self._run(
            dtype is BF16,
            zero_centred,
            eps,
            rows,
            width,
            x.data_ptr(),
            x_stride,
            residual.data_ptr(),
            old_stride,
            weight.data_ptr(),
            out.data_ptr(),
            total.data_ptr(),
        )
        return out, total

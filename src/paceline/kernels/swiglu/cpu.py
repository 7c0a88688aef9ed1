"""Native CPU SwiGLU."""

from __future__ import annotations

import ctypes

import torch

from paceline.kernels import build


class CpuSwiglu:
    """The operator over one loaded library; same arguments as ``reference.swiglu``."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._run = build.declare(lib, "swiglu_run", "ipipii")

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [R, 2I], any row stride -> contiguous [R, I]."""
        rows, width = gate_up.shape
        row_stride, column_stride = gate_up.stride()
        assert column_stride == 1 and width % 2 == 0, (gate_up.shape, gate_up.stride())
        dtype = gate_up.dtype
        out = torch.empty(rows, width // 2, dtype=dtype)
        self._run(dtype is torch.bfloat16, gate_up.data_ptr(), row_stride, out.data_ptr(), rows, width // 2)
        return out

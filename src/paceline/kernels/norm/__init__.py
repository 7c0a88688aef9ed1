"""RMS norms of the residual stream."""

from __future__ import annotations

from functools import cache

import torch

from paceline.kernels import build
from paceline.kernels.norm import reference
from paceline.kernels.norm.cpu import CpuNorm


@cache
def native() -> CpuNorm | None:
    """The compiled operators, or None where the reference must run."""
    lib = build.library("norm")
    return CpuNorm(lib) if lib is not None else None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool) -> torch.Tensor:
    """RMS norm of x [R, H] (last dim contiguous, any row stride) -> [R, H]; see ``reference.rms_norm``."""
    if x.is_cpu and (cpu := native()) is not None:
        return cpu.rms_norm(x, weight, eps, zero_centred)
    return reference.rms_norm(x, weight, eps, zero_centred)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of residual + x, residual + x), all [R, H] in the model dtype; the sum is rounded first."""
    if x.is_cpu and (cpu := native()) is not None:
        return cpu.add_rms_norm(x, residual, weight, eps, zero_centred)
    return reference.add_rms_norm(x, residual, weight, eps, zero_centred)

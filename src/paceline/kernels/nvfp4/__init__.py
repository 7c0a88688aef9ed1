"""NVFP4 weights: decoding them, and products that leave them packed."""

from __future__ import annotations

import warnings
from functools import cache

import torch

from paceline.kernels import build
from paceline.kernels.nvfp4 import cpu, reference
from paceline.kernels.nvfp4.base import BLOCK, PackedNVFP4
from paceline.kernels.nvfp4.cpu import CpuPackedLinear

__all__ = ["BLOCK", "CpuPackedLinear", "PackedNVFP4", "decode", "packed_linear", "packed_product"]


def decode(matrix: PackedNVFP4) -> torch.Tensor:
    """The weights [N, K] in `matrix.dtype`, on the matrix's device: exact, then rounded once."""
    lib = build.library("nvfp4") if matrix.codes.device.type == "cpu" else None
    return reference.decode(matrix) if lib is None else cpu.decode(matrix, lib)


def packed_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights can stay packed on `device` in a model of `dtype`; where not, why is said once."""
    if device.type != "cpu":
        return _refused("packed weights are multiplied on the CPU only")
    if dtype is not torch.bfloat16:
        return _refused("packed weights are multiplied in bfloat16 only (use --dtype bfloat16)")
    lib = build.library("nvfp4")
    if lib is None or not cpu.has_product(lib):
        return _refused("packed weights need native kernels and a CPU with AVX-512")
    return True


def packed_linear(matrix: PackedNVFP4, *, gated: bool = False) -> CpuPackedLinear | None:
    """A layer that keeps the matrix in 4 bits, or None where it has to be decoded; gated: as `CpuLinear`."""
    lib = build.library("nvfp4") if packed_product(matrix.codes.device, matrix.dtype) else None
    if lib is None or not cpu.in_range(matrix):
        return None
    return CpuPackedLinear(matrix, lib, gated=gated)


@cache
def _refused(why: str) -> bool:
    warnings.warn(
        f"{why}: weights are decoded at load instead (more memory, same text)", RuntimeWarning, stacklevel=3
    )
    return False

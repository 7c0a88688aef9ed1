"""The product inside a gated feed-forward layer."""

from __future__ import annotations

from functools import cache

import torch

from paceline.kernels import build
from paceline.kernels.swiglu import reference
from paceline.kernels.swiglu.cpu import CpuSwiglu


@cache
def native() -> CpuSwiglu | None:
    """The compiled operator, or None where the reference must run."""
    lib = build.library("swiglu")
    return CpuSwiglu(lib) if lib is not None else None


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [R, 2I] (gate first) -> silu(gate) * up [R, I]; silu is rounded to the model dtype first."""
    if gate_up.is_cpu and (cpu := native()) is not None:
        return cpu(gate_up)
    return reference.swiglu(gate_up)

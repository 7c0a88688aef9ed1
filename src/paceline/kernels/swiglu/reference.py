"""SwiGLU in torch (the oracle)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from paceline.kernels.rows import rowwise


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [R, 2I] (gate first) -> silu(gate) * up [R, I]; silu is rounded to the model dtype first."""
    return rowwise(_rows, gate_up)


def _rows(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    # contiguous: ATen takes other code for strided rows, which a caller's layout must not decide
    return F.silu(gate.contiguous()) * up

"""The SwiGLU feed-forward layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.kernels.swiglu import swiglu

if TYPE_CHECKING:
    import torch

    from paceline.kernels.linear import Linear


class Mlp:
    """down(silu(gate x) * up x); the fused projection's rows are all gates, then all ups."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, hidden]."""
        return self.down(swiglu(self.gate_up(x)))

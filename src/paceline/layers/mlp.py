"""The SwiGLU feed-forward layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from paceline.kernels.linear import Linear


class Mlp:
    """down(silu(gate x) * up x); `gated` is all but the last product (`kernels.linear.make_gated`)."""

    def __init__(self, gated: Linear, down: Linear) -> None:
        self.gated, self.down = gated, down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, hidden]."""
        return self.down(self.gated(x))

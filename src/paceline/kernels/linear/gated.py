"""A SwiGLU's two projections and its gate as one layer."""

from __future__ import annotations

import torch

from paceline.kernels.linear.base import Linear
from paceline.kernels.swiglu import swiglu


class GatedLinear:
    """silu(x Gᵀ) * (x Uᵀ), of a layer whose outputs are all gates, then all ups."""

    def __init__(self, layer: Linear) -> None:
        self._layer = layer
        self.in_features, self.out_features = layer.in_features, layer.out_features // 2
        self.kind = f"{layer.kind}+swiglu"

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] in the weights' dtype -> [R, N / 2] in the same dtype."""
        assert out_dtype in (None, x.dtype), "the gate's result is in model dtype"
        return swiglu(self._layer(x))

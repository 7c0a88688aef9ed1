"""A linear layer with a bias, around any layer without one."""

from __future__ import annotations

import torch

from paceline.kernels.linear.base import Linear


class BiasedLinear:
    """y = x Wᵀ + b, added to the fp32 sums and rounded once; a row stays as independent as the layer's own.

    bias: [N] in the weight's dtype.
    """

    def __init__(self, layer: Linear, bias: torch.Tensor) -> None:
        assert bias.shape == (layer.out_features,), (bias.shape, layer.out_features)
        self._layer, self._bias = layer, bias.float()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.kind = f"{layer.kind}+bias"

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] in the weight's dtype -> [R, N] in ``out_dtype`` (default: x's dtype)."""
        return self._layer(x, torch.float32).add_(self._bias).to(out_dtype or x.dtype)

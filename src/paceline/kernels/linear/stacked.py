"""Linear layers of one input as one layer, where their weights are stored differently."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.kernels.linear.base import Linear


class StackedLinear:
    """The outputs of `layers` side by side: one product a layer and a copy of the results."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        self._layers = tuple(layers)
        self.in_features = layers[0].in_features
        self.out_features = sum(layer.out_features for layer in layers)
        self.kind = "+".join(layer.kind for layer in layers)

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] in the weights' dtype -> [R, N] in ``out_dtype`` (default: x's dtype)."""
        return torch.cat([layer(x, out_dtype) for layer in self._layers], dim=1)

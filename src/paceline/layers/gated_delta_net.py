"""The recurrent mixer: projections around the gated delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.kernels.gated_delta import prefill, window

if TYPE_CHECKING:
    import torch

    from paceline.kernels.gated_delta.base import DeltaState, DeltaWeights
    from paceline.kernels.linear import Linear
    from paceline.layers.batch import FlatBatch


class GatedDeltaNet:
    """GatedDeltaNet (Yang et al. 2024, arXiv 2412.06464) with grouped value heads, as Qwen3.5 uses it.

    The fused projection's rows are the convolution's channels (all query heads, all key heads, all value
    heads), then the output gate z, then b (write strength) and a (decay), one each a value head.
    """

    def __init__(self, weights: DeltaWeights, projection: Linear, out: Linear) -> None:
        self._weights, self._projection, self._out = weights, projection, out
        shape = weights.shape
        self._split = [shape.conv_dim, shape.value_channels, shape.Hv, shape.Hv]

    def __call__(self, x: torch.Tensor, batch: FlatBatch, state: DeltaState) -> torch.Tensor:
        """[R, hidden] -> [R, hidden]; advances `state` (prefill) or keeps the window's rows in it
        (window)."""
        qkv, z, b, a = self._projection(x).split_with_sizes(self._split, dim=1)
        if batch.kind == "window":
            mixed = window(
                qkv, z, b, a, self._weights, state,
                batch.slots, batch.pending, batch.row_start, batch.row_count, batch.max_rows,
            )  # fmt: skip
        else:
            mixed = prefill(
                qkv, z, b, a, self._weights, state,
                batch.slots, batch.fresh, batch.row_start, batch.row_count,
            )  # fmt: skip
        return self._out(mixed)

"""FP8 numbers: e4m3 elements under one fp32 scale for the tensor; value = element · scale."""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
_PIECE = 1 << 20


def global_scale(amax: torch.Tensor) -> torch.Tensor:
    """The tensor's fp32 scale [] from its largest magnitude; 1 where all elements are zero."""
    scale = amax.float() / E4M3_MAX
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def quantize(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`weight` [N, K] in units of `scale` [], rounded to nearest even: float8_e4m3fn [N, K]."""
    values = weight.new_empty(weight.shape, dtype=torch.float8_e4m3fn)
    step = max(1, _PIECE // weight.shape[1])
    for first in range(0, weight.shape[0], step):
        piece = slice(first, first + step)
        # Beyond 448 e4m3 has NaN only; the division's own rounding can land just there.
        values[piece] = (weight[piece].float() / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return values


def dequantize(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] under one scale ([] or [1]) or one a row ([N] or [N, 1])."""
    if scale.numel() > 1:
        scale = scale.reshape(values.shape[0], 1)
    return (values.float() * scale.float()).to(dtype)

"""RMS norms in torch (the oracle), rounded where Hugging Face's classes round.

Rows are independent: products are exact roundings in any lane, and a row's mean is one reduction over that
row.
"""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool) -> torch.Tensor:
    """x [..., H] -> same shape and dtype, x / rms(x) times (1 + weight) or weight.

    zero_centred (Qwen3_5RMSNorm): all in fp32, one rounding at the end. Otherwise (Qwen3RMSNorm): the
    normalised row is rounded to x's dtype first and then multiplied by ``weight``.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if zero_centred:
        return (normed * (1.0 + weight.float())).to(x.dtype)
    return weight * normed.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of residual + x, residual + x), all [R, H] in the model dtype; the sum is rounded first."""
    total = residual + x
    return rms_norm(total, weight, eps, zero_centred), total

"""NVFP4 numbers: 4-bit e2m1 elements, an e4m3 scale for 16 of them, one fp32 scale for the tensor.

    value = e2m1[code] · (fp32(block scale) · global scale)        the product of the scales comes first

A block is 16 consecutive elements of a row (the input dimension). Byte j of a row holds code 2j in its low
half and code 2j+1 in its high half. Rounding is to the nearest value, ties to the even code, and all of it is
fp32, which is what makes codes and scales equal nvidia-modelopt's byte for byte (tests/quantize).

Everything works on whole tensors of any device; large ones go through in pieces that stay in a CPU's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from paceline.quantize.scale_search import best_four_or_six, best_scale

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN = 2.0**-9
FOUR_SIX_MAX = 256.0
"""Largest block scale under four-over-six: 1.5 times it, for "maximum becomes 4", must still be below 448."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes by the low three bits of a code; bit 3 is the sign."""

ScaleChoice = Literal["max", "four-over-six", "mse"]
_EXPONENT = 0x7F800000
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """One quantised matrix [N, K]."""

    packed: torch.Tensor
    """uint8 [N, K/2]."""
    scales: torch.Tensor
    """float8_e4m3fn [N, K/16]."""
    global_scale: torch.Tensor
    """float32 []."""


def global_scale(amax: torch.Tensor, choice: ScaleChoice = "max") -> torch.Tensor:
    """The tensor's fp32 scale [] from its largest magnitude; 1 where all elements are zero.

    Matrices that one GEMM reads share it: pass the largest magnitude of them all.
    """
    largest = FOUR_SIX_MAX if choice == "four-over-six" else E4M3_MAX
    scale = amax.float() / (E2M1_MAX * largest)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def quantize(weight: torch.Tensor, scale: torch.Tensor, choice: ScaleChoice = "max") -> Nvfp4:
    """Quantise `weight` [N, K] (K a multiple of 16, finite) under the global scale `scale` []."""
    rows, columns = weight.shape
    assert columns % BLOCK == 0, weight.shape
    packed = weight.new_empty(rows, columns // 2, dtype=torch.uint8)
    scales = weight.new_empty(rows, columns // BLOCK, dtype=torch.float8_e4m3fn)
    step = max(1, _PIECE // columns)
    for first in range(0, rows, step):
        piece = slice(first, first + step)
        blocks = weight[piece].float().reshape(-1, BLOCK)
        found = _CHOICES[choice](blocks, scale)
        scales[piece] = found.view(-1, columns // BLOCK)
        codes = e2m1_codes(blocks / (found.float() * scale)[:, None])
        packed[piece] = pack(codes.view(-1, columns))
    return Nvfp4(packed, scales, scale)


def dequantize(matrix: Nvfp4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K]; computed in fp32 and then rounded to `dtype`."""
    rows, half = matrix.packed.shape
    values = matrix.packed.new_empty(rows, 2 * half, dtype=dtype)
    table = torch.tensor(E2M1, device=matrix.packed.device)
    table = torch.cat([table, -table])
    step = max(1, _PIECE // (2 * half))
    for first in range(0, rows, step):
        piece = slice(first, first + step)
        scales = matrix.scales[piece].float() * matrix.global_scale
        blocks = table[unpack(matrix.packed[piece]).int()].view(*scales.shape, BLOCK) * scales[..., None]
        values[piece] = blocks.view(-1, 2 * half).to(dtype)
    return values


def max_scales(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Block scales [B] (e4m3) that map each block's largest magnitude to 6. A block of zeros gets 1."""
    ratio = blocks.abs().amax(dim=1) / (E2M1_MAX * scale)
    ratio = torch.where(ratio == 0, torch.ones_like(ratio), ratio)
    return to_e4m3(ratio)


def to_e4m3(ratio: torch.Tensor) -> torch.Tensor:
    """Round to a usable e4m3 scale: not zero, which would lose the block, nor beyond 448, which is NaN."""
    return ratio.clamp(E4M3_MIN, E4M3_MAX).to(torch.float8_e4m3fn)


def round_e2m1(magnitude: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 value of each fp32 magnitude; ties to the even code; beyond 6 is 6."""
    # The grid's step is half the power of two at or below the magnitude, and 0.5 below 1. Dividing and
    # multiplying by it is exact, so one rounding to even integers is the rounding to e2m1.
    step = (
        magnitude.clamp(1.0, E2M1_MAX).view(torch.int32).bitwise_and_(_EXPONENT).view(torch.float32).mul_(0.5)
    )
    return magnitude.div(step).round_().mul_(step).clamp_(max=E2M1_MAX)


def e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """4-bit codes (uint8) of fp32 values in units of their block's scale."""
    nearest = round_e2m1(values.abs())
    # Codes of 0, .5, ... 2 are twice the value, of 2, 3, 4 the value + 2, of 4, 6 half the value + 4: always
    # the lowest of these three lines.
    index = torch.minimum(torch.minimum(nearest * 2, nearest + 2), nearest.mul_(0.5).add_(4))
    return index.to(torch.uint8).bitwise_or_((values < 0).to(torch.uint8).mul_(8))


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes [N, K] -> bytes [N, K/2], the even column in the low half."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [N, K/2] -> codes [N, K]."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)


def _four_over_six(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    six = max_scales(blocks, scale)
    four = to_e4m3(blocks.abs().amax(dim=1) / (4.0 * scale))
    return best_four_or_six(blocks, scale, six, four, round_e2m1)


def _mse(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return best_scale(blocks, scale, round_e2m1)


_CHOICES: dict[ScaleChoice, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "max": max_scales,
    "four-over-six": _four_over_six,
    "mse": _mse,
}

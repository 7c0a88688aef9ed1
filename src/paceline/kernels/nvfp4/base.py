"""A weight matrix in NVFP4, as checkpoints store it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.kernels.rows import interleaved

BLOCK = 16
"""Consecutive inputs that share a block scale."""


@dataclass(frozen=True, slots=True)
class PackedNVFP4:
    """A matrix [N, K] whose weights are `e2m1[code] * (block scale * global scale)`, K a multiple of 16."""

    codes: torch.Tensor
    """uint8 [N, K/2]: code 2j of a row in the low half of byte j, code 2j+1 in the high half."""
    scales: torch.Tensor
    """float8_e4m3fn [N, K/16], neither negative nor NaN."""
    global_scale: torch.Tensor
    """float32 [N]: one a row, since matrices that were fused may differ."""
    dtype: torch.dtype
    """What a decoded weight is rounded to: the model's dtype."""

    @classmethod
    def of(
        cls, codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype
    ) -> PackedNVFP4:
        """A matrix under one global scale ([] or [1])."""
        return cls(codes, scales, global_scale.float().reshape(1).repeat(codes.shape[0]), dtype)

    @classmethod
    def fused(cls, matrices: Sequence[PackedNVFP4]) -> PackedNVFP4:
        """Several matrices of the same input as one: rows in the order given."""
        return cls(
            torch.cat([m.codes for m in matrices]),
            # cat has no float8 kernel everywhere: bytes are bytes
            torch.cat([m.scales.view(torch.uint8) for m in matrices]).view(torch.float8_e4m3fn),
            torch.cat([m.global_scale for m in matrices]),
            matrices[0].dtype,
        )

    def interleaved(self) -> PackedNVFP4:
        """Rows that are all gates, then all ups, in the order of a gated layer."""
        scales = interleaved(self.scales.view(torch.uint8)).view(torch.float8_e4m3fn)
        return PackedNVFP4(interleaved(self.codes), scales, interleaved(self.global_scale), self.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K] of the matrix that this stands for."""
        return self.codes.shape[0], 2 * self.codes.shape[1]

"""Decoding NVFP4 in torch (the oracle, and what runs on CUDA)."""

from __future__ import annotations

import torch

from paceline.kernels.nvfp4.base import BLOCK, PackedNVFP4

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes by the low three bits of a code; bit 3 is the sign."""
PIECE = 1 << 22
"""Weights that are decoded at once: what they take beside the result stays small."""


def decode(matrix: PackedNVFP4) -> torch.Tensor:
    """The weights [N, K] in `matrix.dtype`: computed in float32, the scales' product first, then rounded."""
    rows, columns = matrix.shape
    table = torch.tensor([*E2M1, *(-m for m in E2M1)], device=matrix.codes.device)
    weights = matrix.codes.new_empty(rows, columns, dtype=matrix.dtype)
    step = max(1, PIECE // columns)
    for first in range(0, rows, step):
        piece = slice(first, first + step)
        packed = matrix.codes[piece]
        codes = torch.stack([packed & 15, packed >> 4], dim=-1).view(-1, columns // BLOCK, BLOCK)
        scales = matrix.scales[piece].float() * matrix.global_scale[piece, None]
        weights[piece] = (table[codes.int()] * scales[..., None]).view(-1, columns).to(matrix.dtype)
    return weights

"""Linear layer in torch (the oracle)."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional as F

TILE = 32
PROBED_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31)


class ReferenceLinear:
    """y = x Wᵀ by ``F.linear``, with rows made independent of each other where ``deterministic`` asks for it.

    weight: [N, K], bfloat16 or float32, kept as it is (not copied).
    """

    def __init__(self, weight: torch.Tensor, *, deterministic: bool) -> None:
        self.weight = weight
        self.out_features, self.in_features = weight.shape
        self.deterministic = deterministic
        self._plan = row_plan(weight) if deterministic else "direct"

    @property
    def kind(self) -> str:
        """'torch', or if deterministic 'torch-direct', 'torch-tile' (padded to 32 rows), 'torch-row'."""
        return f"torch-{self._plan}" if self.deterministic else "torch"

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] in the weight's dtype -> [R, N] in ``out_dtype`` (default: x's)."""
        if not self.deterministic or x.shape[0] == 0:
            return product(x, self.weight, out_dtype or x.dtype)
        return in_tiles(x, self.weight, out_dtype or x.dtype, self._plan)


def product(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """x Wᵀ. float32 of bfloat16 inputs is the accumulator on CUDA; on the CPU it went through bf16."""
    if x.is_cuda and out_dtype != x.dtype:
        return torch.mm(x, weight.t(), out_dtype=out_dtype)
    return F.linear(x, weight).to(out_dtype)


def in_tiles(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype, plan: str) -> torch.Tensor:
    """``product`` in calls of up to TILE rows ('direct'), just TILE ('tile', zero padded) or one ('row')."""
    pieces = []
    for piece in x.split(1 if plan == "row" else TILE):
        rows = piece.shape[0]
        if plan == "tile":
            piece = F.pad(piece, (0, 0, 0, TILE - rows))
        pieces.append(product(piece, weight, out_dtype)[:rows])
    return torch.cat(pieces)


def row_plan(weight: torch.Tensor) -> str:
    """The cheapest of 'direct', 'tile', 'row' that gives a row the same bits in any company (probed once)."""
    return _probed(*weight.shape, weight.dtype, weight.device, torch.get_num_threads())


@cache
def _probed(
    out_features: int, in_features: int, dtype: torch.dtype, device: torch.device, threads: int
) -> str:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out_features, in_features, generator=generator).to(device, dtype)
    x = torch.randn(TILE, in_features, generator=generator).to(device, dtype)
    full = F.linear(x, weight)
    moved = torch.equal(F.linear(x.roll(5, 0), weight).roll(-5, 0), full)
    zeros = torch.zeros_like(x[1:])
    alone = {i: F.linear(torch.cat([x[i : i + 1], zeros]), weight)[0] for i in (0, 13, TILE - 1)}
    if not (moved and all(torch.equal(row, full[i]) for i, row in alone.items())):
        return "row"
    return "direct" if all(torch.equal(F.linear(x[:r], weight), full[:r]) for r in PROBED_ROWS) else "tile"

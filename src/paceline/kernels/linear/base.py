"""What every linear layer is, whatever code runs it."""

from __future__ import annotations

from typing import Protocol

import torch


class Linear(Protocol):
    """A weight [N, K] that was made ready for its device."""

    in_features: int
    out_features: int

    @property
    def kind(self) -> str:
        """Which code runs, for reports."""

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] in the weight's dtype -> [R, N] in ``out_dtype`` (default: x's dtype).

        Sums are fp32; float32 results are not rounded further.
        """

"""Linear layers: weights packed once, any number of rows."""

from __future__ import annotations

import warnings
from typing import Protocol

import torch

from paceline.kernels import build
from paceline.kernels.linear.cpu import CpuLinear
from paceline.kernels.linear.probe import rows_are_independent
from paceline.kernels.linear.reference import ReferenceLinear


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


def make_linear(weight: torch.Tensor, *, deterministic: bool) -> Linear:
    """A layer for ``weight`` [N, K] (bfloat16 or float32) on the weight's device.

    The native CPU layer copies the weight into its own packing and is row-invariant by construction; the
    torch one keeps ``weight`` and, if ``deterministic``, finds out by a probe how to be so.
    """
    assert weight.dim() == 2 and weight.dtype in (torch.bfloat16, torch.float32), (weight.shape, weight.dtype)
    lib = build.library("linear") if weight.device.type == "cpu" else None
    if lib is None:
        return ReferenceLinear(weight, deterministic=deterministic)
    layer = CpuLinear(weight, lib)
    if deterministic and not rows_are_independent(layer, weight.dtype):
        warnings.warn(
            f"the native product of shape {tuple(weight.shape)} gave a row other bits in other company: "
            "it is replaced by padded torch products (slower, same text)",
            RuntimeWarning,
            stacklevel=2,
        )
        return ReferenceLinear(weight, deterministic=True)
    return layer

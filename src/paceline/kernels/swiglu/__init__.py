"""The product inside a gated feed-forward layer."""

from __future__ import annotations

from paceline.kernels.swiglu.reference import swiglu

__all__ = ["swiglu"]

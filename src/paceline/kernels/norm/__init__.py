"""RMS norms of the residual stream."""

from __future__ import annotations

from paceline.kernels.norm.reference import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]

"""Gated delta rule with replay windows: conv, gates, recurrence and gated norm of one GatedDeltaNet layer.

Formulas: transformers 5.24 ``modeling_qwen3_5.py`` (torch path); state and rollback: ``base``.
"""

from __future__ import annotations

from paceline.kernels.gated_delta.base import DeltaShape, DeltaState, DeltaWeights
from paceline.kernels.gated_delta.reference import commit, prefill, window

__all__ = ["DeltaShape", "DeltaState", "DeltaWeights", "commit", "prefill", "window"]

"""Attention around a paged cache: head norm + rotary, cache writes, the attention, output gate."""

from __future__ import annotations

from paceline.kernels.attention.reference import norm_rope, paged_attention, sigmoid_gate, store_kv

__all__ = ["norm_rope", "paged_attention", "sigmoid_gate", "store_kv"]

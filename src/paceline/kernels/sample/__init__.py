"""Keyed sampling: argmax of scores, with or without Gumbel noise that depends on nothing but (key, position, id)."""

from __future__ import annotations

from paceline.kernels.sample.reference import greedy, gumbel_argmax, gumbel_noise, prompt_key, request_key

__all__ = ["greedy", "gumbel_argmax", "gumbel_noise", "prompt_key", "request_key"]

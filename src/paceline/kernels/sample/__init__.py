"""Keyed sampling: argmax of scores, bare or with Gumbel noise that only (key, position, id) determine."""

from __future__ import annotations

from paceline.kernels.sample.reference import greedy, gumbel_argmax, gumbel_noise, prompt_key, request_key

__all__ = ["greedy", "gumbel_argmax", "gumbel_noise", "prompt_key", "request_key"]

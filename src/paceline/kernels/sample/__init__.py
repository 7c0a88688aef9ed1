"""Keyed sampling: argmax of scores, bare or with Gumbel noise that only (key, position, id) determine.

The token at a position is argmax(scores + noise) with scores = processed logits / temperature, which is an
exact draw from their softmax; a draft is accepted when it equals that token, so speculation changes no text.
``reference`` has the definition of the noise.

Scores must not be NaN. A score of -inf never wins; in a row that holds nothing else id 0 is returned, and a
caller that can mask every id has to see to it itself.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from paceline.kernels.sample import cpu, reference
from paceline.kernels.sample.reference import prompt_key, request_key

__all__ = ["greedy", "gumbel_argmax", "gumbel_noise", "lead", "prompt_key", "request_key"]

_native = cache(cpu.native)


def greedy(scores: Tensor) -> Tensor:
    """argmax of every row of ``scores`` [R, V] fp32 -> ids [R] int64; the lowest id on ties."""
    op = _native() if scores.is_cpu else None
    return op.greedy(scores) if op else reference.greedy(scores)


def lead(scores: Tensor, ids: Tensor, others: Tensor) -> Tensor:
    """By how much the scores [..., V] of ``ids`` [...] exceed those of ``others`` [...], of which a negative
    one may stand for any."""
    mine, theirs = scores.gather(-1, torch.stack((ids, others.clamp(min=0)), -1)).unbind(-1)
    return mine - theirs


def gumbel_argmax(scores: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """argmax of scores + noise of every row -> ids [R] int64; the lowest id on ties.

    ``scores`` [R, V] fp32 (-inf: masked), ``keys`` [R] int64 of ``request_key``, ``positions`` [R] int64: the
    absolute position of the token being sampled. The native code takes a logarithm only where the noise could
    matter; the result is the definition's.
    """
    op = _native() if scores.is_cpu else None
    return (op or reference).gumbel_argmax(scores, keys, positions)


def gumbel_noise(keys: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """The noise [R, vocab] fp32 that ``gumbel_argmax`` adds, bit for bit, for ids 0..vocab-1."""
    op = _native() if keys.is_cpu else None
    return (op or reference).gumbel_noise(keys, positions, vocab)

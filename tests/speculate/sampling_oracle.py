"""Sampling parameters in plain Python over one row: what the vectorised sampler is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from paceline.config.sampling import SamplingParams

NOTHING = -math.inf


def processed_row(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> list[float]:
    """Scores of one row [V] before noise, by the definitions; fp32 roundings where the sampler has them."""
    row = [_f32(x) for x in logits.tolist()]
    for token, bias in (params.logit_bias or {}).items():
        row[token] = _f32(row[token] + _f32(bias))
    if params.allowed_token_ids is not None:
        row = [x if i in params.allowed_token_ids else NOTHING for i, x in enumerate(row)]
    row = [_penalised(x, i, params, prompt, output) for i, x in enumerate(row)]
    if len(output) < params.min_tokens:
        row = [NOTHING if i in stop_ids else x for i, x in enumerate(row)]
    banned = {w[-1] for w in bad_words if len(w) == 1 or list(output[-len(w) + 1 :]) == list(w[:-1])}
    without = [NOTHING if i in banned else x for i, x in enumerate(row)]
    row = without if max(without) > NOTHING else row
    if params.greedy:
        return row
    row = [_f32(x / _f32(params.temperature)) for x in row]
    if params.min_p > 0:
        floor = _f32(max(row) + _f32(math.log(params.min_p)))
        row = [x if x >= floor else NOTHING for x in row]
    return _top(row, params)


def _penalised(
    x: float, token: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> float:
    count = list(output).count(token)
    repetition = _f32(params.repetition_penalty)
    if count or token in prompt:
        x = _f32(x / repetition) if x > 0 else _f32(x * repetition)
    x = _f32(x - _f32(_f32(params.frequency_penalty) * count))
    return _f32(x - _f32(params.presence_penalty)) if count else x


def _top(row: list[float], params: SamplingParams) -> list[float]:
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    # Masses are fp32 probabilities in units of 2^-48, so that sums at a boundary have one definition.
    mass = [round(p * 2**48) for p in torch.softmax(torch.tensor(row), -1).tolist()]
    whole = sum(mass[i] for i in order) if params.top_k > 0 else 2**48
    kept, reached = set(), 0
    for token in order:
        if reached >= params.top_p * whole and params.top_p < 1:
            break
        kept.add(token)
        reached += mass[token]
    return [x if i in kept else NOTHING for i, x in enumerate(row)]


def _f32(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float32))

"""Requests for the sampler's tests, and what they mean in plain Python over one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from paceline.config.sampling import SamplingParams
from paceline.speculate.sampler import SamplingRequest

NOTHING = -math.inf
VOCAB, EOS = 40, (7,)
PROMPT = [3, 4, 4, 9]
BAD = ((5,), (6, 8), (1, 2, 3))

# Each processor alone, and all of them together, greedy and drawn.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "bias": {"logit_bias": {3: 2.5, 5: -100.0}, "temperature": 0.0},
    "allowed": {"allowed_token_ids": [1, 2, 7, 30, 31]},
    "repetition": {"repetition_penalty": 1.7, "temperature": 0.0},
    "presence": {"presence_penalty": 1.2, "temperature": 0.0},
    "frequency": {"frequency_penalty": 0.7, "temperature": 0.0},
    "min_tokens": {"min_tokens": 5, "stop_token_ids": [11, 12], "logit_bias": {11: 9, 7: 9}},
    "bad_words": {"bad_words": ["x"], "logit_bias": {1: 6, 2: 6, 3: 6, 6: 6, 8: 6}},
    "temperature": {"temperature": 0.6},
    "min_p": {"min_p": 0.2},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "everything": {
        "temperature": 1.3, "top_k": 9, "top_p": 0.8, "min_p": 0.02, "min_tokens": 4, "bad_words": ["x"],
        "logit_bias": {1: 2, 2: 2, 7: 5}, "repetition_penalty": 1.2, "presence_penalty": -0.5,
        "frequency_penalty": 0.4, "stop_token_ids": [11],
    },
}  # fmt: skip


def request(key: int = 1, **fields: Any) -> SamplingRequest:
    params = SamplingParams(**fields)
    return SamplingRequest(params, key, PROMPT, EOS, BAD if params.bad_words else ())


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

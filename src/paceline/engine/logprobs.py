"""Log-probabilities of emitted tokens: log-softmax of the raw logits, before any processing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.engine.results import TokenLogprobs


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """One entry a token: its own log-probability and the `count` best ids of its row.

    logits [R, V] float32 raw logits of the rows that emitted `tokens`. Waits for the device.
    """
    rows = logits[: len(tokens)].double().log_softmax(-1)
    own = rows[torch.arange(len(tokens)), torch.tensor(list(tokens), device=rows.device)].tolist()
    best = rows.topk(count, dim=-1) if count else None
    entries = []
    for i, token in enumerate(tokens):
        top = dict(zip(best.indices[i].tolist(), best.values[i].tolist(), strict=True)) if best else {}
        entries.append(TokenLogprobs(token, own[i], top))
    return entries

"""Log-probabilities of emitted tokens, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.engine.results import TokenLogprobs
from paceline.speculate.processors import log_probabilities


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """One entry a token: its own log-probability and the `count` best ids of its row.

    logits [R, V] float32: raw logits of the rows that emitted `tokens`. Waits for the device.
    """
    rows = logits[: len(tokens)]
    own, best = log_probabilities(rows, torch.tensor(list(tokens), device=rows.device), count)
    entries = []
    for token, logprob, ids, values in zip(
        tokens, own.tolist(), best.ids.tolist(), best.scores.tolist(), strict=True
    ):
        entries.append(TokenLogprobs(token, logprob, dict(zip(ids, values, strict=True))))
    return entries

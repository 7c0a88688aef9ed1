"""Verification: the one place where a sequence's length moves.

The token at a position is a function of the logits there and of noise keyed by (request key, position,
token id). A draft is accepted exactly when it equals the token that the target samples at its position,
so the text is the one of plain decoding, whatever was drafted. Of the window [anchor, d1..dn] the rows
0..a become committed, where a is the number of drafts before the first disagreement; a + 1 tokens are
emitted, the last of them the new anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of S windows, on the model's device."""

    tokens: torch.Tensor
    """[S, W] sampled token of each window row; row i's first `counts[i]` are emitted."""
    counts: torch.Tensor
    """[S] emitted tokens: accepted drafts + 1 (0 for a padding sequence)."""
    last_rows: torch.Tensor
    """[S] flat row that gave the new anchor."""
    emitted: list[list[int]] | None = None
    """The emitted tokens of each sequence, where the host knows them already."""


def accept(
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    row_start: torch.Tensor,
    row_count: torch.Tensor,
    max_rows: int,
) -> Accepted:
    """Keep the longest prefix of each window's drafts that agrees with what the target sampled.

    sampled [R]: token sampled from each flat row; drafts [S, >= max_rows - 1]; row_start, row_count [S].
    Static shapes and no host wait, so that it can be part of a captured step. On the CPU the same comes from
    plain Python, to which a few numbers are not worth a tensor operator each.
    """
    if sampled.device.type == "cpu":
        return _accept_on_host(sampled, drafts, row_start, row_count, max_rows)
    return accept_in_torch(sampled, drafts, row_start, row_count, max_rows)


def accept_in_torch(
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    row_start: torch.Tensor,
    row_count: torch.Tensor,
    max_rows: int,
) -> Accepted:
    """`accept` on any device."""
    offsets = torch.arange(max_rows, device=sampled.device)
    rows = (row_start[:, None] + offsets).clamp(max=sampled.shape[0] - 1)
    tokens = sampled[rows]  # [S, W]
    counts = row_count.clamp(max=1)
    if max_rows > 1:
        agree = (tokens[:, :-1] == drafts[:, : max_rows - 1]) & (offsets[1:] < row_count[:, None])
        counts = counts + agree.long().cumprod(1).sum(1)
    last_rows = row_start + (counts - 1).clamp(min=0)
    return Accepted(tokens, counts, last_rows)


def _accept_on_host(
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    row_start: torch.Tensor,
    row_count: torch.Tensor,
    max_rows: int,
) -> Accepted:
    ids, starts, rows = sampled.tolist(), row_start.tolist(), row_count.tolist()
    guesses = drafts.tolist() if max_rows > 1 else [[]] * len(starts)
    emitted, tokens, last_rows = [], [], []
    for start, count, guessed in zip(starts, rows, guesses, strict=True):
        agreed = min(count, 1)
        while 0 < agreed < count and ids[start + agreed - 1] == guessed[agreed - 1]:
            agreed += 1
        emitted.append(ids[start : start + agreed])
        window = ids[start : start + max_rows]
        tokens.append(window + ids[-1:] * (max_rows - len(window)))
        last_rows.append(start + max(agreed - 1, 0))
    counts = [len(line) for line in emitted]
    return Accepted(_tensor(tokens), _tensor(counts), _tensor(last_rows), emitted)


def _tensor(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, np.int64))  # half of what torch.tensor takes


def accept_reference(sampled: list[int], drafts: list[int]) -> list[int]:
    """One window in plain Python: emitted tokens, given the sampled token of each row. The oracle of
    `accept`."""
    emitted = [sampled[0]]
    for draft, following in zip(drafts, sampled[1:], strict=True):
        if draft != emitted[-1]:
            break
        emitted.append(following)
    return emitted

"""Verification: the one place where a sequence's length moves.

The token at a position is a function of the logits there and of noise keyed by (request key, position,
token id). A draft is accepted exactly when it equals the token that the target samples at its position,
so the text is the one of plain decoding, whatever was drafted. Of the window [anchor, d1..dn] the rows
0..a become committed, where a is the number of drafts before the first disagreement; a + 1 tokens are
emitted, the last of them the new anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class HostAccepted:
    """The same where the host knows it: tensors, at ten microseconds each, only for those who ask."""

    emitted: list[list[int]]
    """Emitted tokens of each sequence."""
    sampled: list[int]
    """[R] token sampled from each flat row."""
    starts: list[int]
    """[S] first row of each window."""
    max_rows: int

    @property
    def tokens(self) -> torch.Tensor:
        """As in `Accepted`."""
        last = len(self.sampled) - 1
        rows = [[min(start + i, last) for i in range(self.max_rows)] for start in self.starts]
        return torch.tensor([[self.sampled[row] for row in window] for window in rows])

    @property
    def counts(self) -> torch.Tensor:
        """As in `Accepted`."""
        return torch.tensor([len(tokens) for tokens in self.emitted])

    @property
    def last_rows(self) -> torch.Tensor:
        """As in `Accepted`."""
        windows = zip(self.starts, self.emitted, strict=True)
        return torch.tensor([start + max(len(tokens) - 1, 0) for start, tokens in windows])


def accept(
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    row_start: torch.Tensor,
    row_count: torch.Tensor,
    max_rows: int,
) -> Accepted | HostAccepted:
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
) -> HostAccepted:
    ids, starts, rows = sampled.tolist(), row_start.tolist(), row_count.tolist()
    guesses = drafts.tolist() if max_rows > 1 else [[]] * len(starts)
    emitted = []
    for start, count, guessed in zip(starts, rows, guesses, strict=True):
        agreed = min(count, 1)
        while 0 < agreed < count and ids[start + agreed - 1] == guessed[agreed - 1]:
            agreed += 1
        emitted.append(ids[start : start + agreed])
    return HostAccepted(emitted, ids, starts, max_rows)


def accept_reference(sampled: list[int], drafts: list[int]) -> list[int]:
    """One window in plain Python: emitted tokens, given the sampled token of each row. The oracle of
    `accept`."""
    emitted = [sampled[0]]
    for draft, following in zip(drafts, sampled[1:], strict=True):
        if draft != emitted[-1]:
            break
        emitted.append(following)
    return emitted

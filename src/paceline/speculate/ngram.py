"""N-gram look-up: what followed the last time the text ended like this."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from paceline.speculate.base import DraftRequest, Drafts, Proposer


def lookup(tokens: Sequence[int], shortest: int, longest: int, limit: int) -> list[int]:
    """Tokens that followed the earliest occurrence of the longest suffix that occurs before (vLLM's rule).

    tokens: the whole history; a suffix of `longest` down to `shortest` tokens is searched for; at most
    `limit` following tokens are returned, possibly none. O(len(tokens) * longest) at worst; the search
    itself is `bytes.find` over 4-byte ids.
    """
    if limit <= 0:
        return []
    text = array("i", tokens).tobytes()
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        at = _find(text, text[-4 * size :], len(tokens) - 1)
        if at >= 0:
            return list(tokens[at + size : at + size + limit])
    return []


def _find(text: bytes, suffix: bytes, end: int) -> int:
    """First token index where `suffix` occurs in the first `end` tokens, -1 if nowhere (hits inside an id
    skipped)."""
    at = text.find(suffix, 0, 4 * end)
    while at >= 0 and at % 4:
        at = text.find(suffix, at + 1, 4 * end)
    return at // 4 if at >= 0 else -1


class NgramProposer(Proposer):
    """Proposes from the sequence's own history; may propose nothing."""

    method = "ngram"
    needs_history = True

    def __init__(self, num_speculative_tokens: int, shortest: int, longest: int, device: torch.device):
        assert 1 <= shortest <= longest
        self.num_speculative_tokens = num_speculative_tokens
        self.shortest, self.longest = shortest, longest
        self.device = device

    def propose(self, request: DraftRequest) -> Drafts:
        """Look every history up; sequences without a match get no draft."""
        assert request.histories is not None
        found = [
            lookup(history, self.shortest, self.longest, limit)
            for history, limit in zip(request.histories, request.limits, strict=True)
        ]
        width = self.num_speculative_tokens
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in found], dtype=torch.int64)
        return Drafts(tokens.to(self.device, non_blocking=True), [len(row) for row in found])

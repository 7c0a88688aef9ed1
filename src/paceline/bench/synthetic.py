"""Synthetic acceptance: how fast an engine is at a given number of tokens a verification.

Random weights draft nothing useful, so the benchmark decides how many drafts are accepted. SYNTHETIC: the
text is made up, and nothing here is part of the engine. All the work of a real step is done (the target's
logits are computed and searched); then the "sampled" tokens of a window's leading rows are replaced by its
drafts, and the next by a token that is none.
"""

from __future__ import annotations

import torch

from paceline.speculate.sampler import Sampler, SampleRows


def acceptance_rate(length: float, drafts: int) -> float:
    """The chance p that a draft agrees, given that all before it did, for `length` tokens a verification.

    Solves 1 + p + p^2 + ... + p^drafts = length; 1 <= length <= drafts + 1.
    """
    assert 1 <= length <= drafts + 1, f"{length} tokens a verification of {drafts} drafts"
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**k for k in range(drafts + 1)) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


class SyntheticAcceptance:
    """Stands in for `Sampler.sample` and lets each window accept a random number of its drafts.

    The numbers are drawn on the device by its default generator, so that a captured step draws anew in every
    replay. Rows without drafts (a prompt's end) are sampled as ever.
    """

    def __init__(self, sampler: Sampler, length: float, drafts: int) -> None:
        self._sampler = sampler
        self._sample = sampler.sample
        self._rate = acceptance_rate(length, drafts)

    def sample(
        self, logits: torch.Tensor, rows: SampleRows, allowed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `Sampler.sample`, but drafts agree as often as was asked for."""
        tokens, drafts = self._sample(logits, rows, allowed), rows.drafts.shape[1]
        if drafts == 0:
            return tokens
        slots = self._sampler.tables.slots
        agrees = torch.rand(slots, drafts, device=tokens.device) < self._rate
        accepted = agrees.long().cumprod(1).sum(1)[rows.slots]  # one draw a window, whatever its rows
        here = rows.drafts.gather(1, rows.offsets.clamp(max=drafts - 1)[:, None])[:, 0]
        other = torch.where(tokens == here, (tokens + 1) % self._sampler.vocab, tokens)
        guessed = torch.where(rows.offsets < accepted, here, other)
        return torch.where(rows.offsets < drafts, guessed, tokens)

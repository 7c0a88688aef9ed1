"""Choosing a block scale by its squared error instead of by the block's maximum.

`best_scale` searches every positive e4m3 scale, 126 of them, but looks at about ten: both ends are cut off by
bounds that hold exactly, not by a guess.

    above   Let S be the smallest scale that clips nothing. The grid of 2T, as far as it reaches into the
            block, is part of the grid of T; so for T >= S doubling never helps, and nothing at or above 2S
            needs a look (but where the half of a scale is no e4m3 value: odd codes below 16).
    below   A scale that clips loses at least (amax - 6T)² on the block's largest element alone. Once that is
            more than the best error found, every smaller scale is worse.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Rounding = Callable[[torch.Tensor], torch.Tensor]
_LAST_CODE = 126
"""e4m3's largest finite value, 448; code 127 is NaN."""
_OCTAVE = 8
_LAST_LINEAR = 15
"""Codes up to 15 are multiples of 2^-9, so halving an odd one leaves the format."""


def e4m3_table(device: torch.device) -> torch.Tensor:
    """The values [127] of codes 0 to 126, ascending."""
    codes = torch.arange(_LAST_CODE + 1, dtype=torch.uint8, device=device)
    return codes.view(torch.float8_e4m3fn).float()


def squared_error(blocks: torch.Tensor, step: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Squared error [B] of magnitudes `blocks` [B, 16] quantised in units of `step` [B]."""
    step = step[:, None]
    return rounding(blocks / step).mul_(step).sub_(blocks).square_().sum(dim=1)


def best_four_or_six(
    blocks: torch.Tensor, scale: torch.Tensor, six: torch.Tensor, four: torch.Tensor, rounding: Rounding
) -> torch.Tensor:
    """Of two e4m3 scales a block the one with the smaller error; `six` where both are as good."""
    magnitudes = blocks.abs()
    with_six = squared_error(magnitudes, six.float() * scale, rounding)
    with_four = squared_error(magnitudes, four.float() * scale, rounding)
    return torch.where(with_four < with_six, four.view(torch.uint8), six.view(torch.uint8)).view(six.dtype)


def best_scale(blocks: torch.Tensor, scale: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """The e4m3 scale [B] with the least squared error of `blocks` [B, 16]; of equals the smallest.

    A block of zeros gets 1, as under `max`.
    """
    magnitudes, table = blocks.abs(), e4m3_table(blocks.device)
    amax = magnitudes.amax(dim=1)
    start = torch.searchsorted(table * (6.0 * scale), amax).clamp_(1, _LAST_CODE)
    search = _Search(magnitudes, scale, table, rounding, start)
    for above in range(1, _OCTAVE):
        search.look(start + above, search.everywhere)
    linear = start < _OCTAVE
    if bool(linear.any()):
        for code in range(_OCTAVE, _LAST_LINEAR + 1):
            search.look(torch.full_like(start, code), linear)
    below = start - 1
    while bool((alive := (below >= 1) & search.may_win(amax, below)).any()):
        search.look(below, alive)
        below = below - 1
    best = torch.where(amax == 0, torch.full_like(start, 56), search.best)  # code 56 is 1.0
    return best.to(torch.uint8).view(torch.float8_e4m3fn)


class _Search:
    """The best code seen so far for each block, and its error."""

    def __init__(
        self,
        magnitudes: torch.Tensor,
        scale: torch.Tensor,
        table: torch.Tensor,
        rounding: Rounding,
        start: torch.Tensor,
    ) -> None:
        self._magnitudes, self._scale, self._table, self._rounding = magnitudes, scale, table, rounding
        self.everywhere = torch.ones_like(start, dtype=torch.bool)
        self.best = start.clone()
        self.error = squared_error(magnitudes, table[start] * scale, rounding)

    def look(self, codes: torch.Tensor, where: torch.Tensor) -> None:
        """Try `codes` [B] (those beyond the format are skipped) on the blocks `where` [B]."""
        rows = (where & (codes <= _LAST_CODE)).nonzero().squeeze(1)
        codes = codes[rows]
        error = squared_error(self._magnitudes[rows], self._table[codes] * self._scale, self._rounding)
        known, best = self.error[rows], self.best[rows]
        better = (error < known) | ((error == known) & (codes < best))
        self.error[rows] = torch.where(better, error, known)
        self.best[rows] = torch.where(better, codes, best)

    def may_win(self, amax: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Where the clipping loss of `codes` alone does not rule them out."""
        clipped = (amax - 6.0 * self._table[codes.clamp(min=0)] * self._scale).clamp_(min=0)
        return clipped.square_() <= self.error

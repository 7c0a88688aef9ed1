"""What the text held the last time that it ended like this: a second opinion on a drafter's guesses.

Agents copy: names, lines of code, quotations, JSON keys. A drafter whose window or size does not carry it
through a copy still knows how likely each of its tokens is. So the newest place that ends like the text, on
the most of a few numbers of tokens, is looked up (n-gram look-up, Saxena 2023), and what stands behind it is
followed as long as the drafter objects less than the agreement speaks for it. A wrong guess costs what any
wrong guess costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

SIZES = (8, 3, 2, 1)
"""Tokens of an ending, longest first: the first that occurred before is believed."""
REACH = 1 << 16
"""Tokens of a prompt, its last ones, that are indexed."""
LONGEST = 16
"""Agreement beyond this many tokens says no more."""
NOTHING = -1
NATS_PER_TOKEN, NATS_OF_DOUBT = 2.0, 3.0
"""A continuation behind k agreeing tokens is followed where the drafter's own token is less than
exp(2 k - 3) times as likely (docs/guides/speculation.md#copies has the measurement)."""

_FEW = 16
"""Tokens below which a plain loop is faster than vectors."""
_FACTOR, _WORD = 0xD1B54A32D192ED03, (1 << 64) - 1


class Endings:
    """Where each ending of a growing text stood last.

    A table of places for each size, by hash: endings that share an entry hide one another, and none is
    mistaken for another, since the text itself is compared. Tables for 65,536 tokens take 8 MiB.
    """

    def __init__(self, room: int) -> None:
        """`room`: tokens that the text may have; of more than `REACH` some are forgotten."""
        bits = (8 * min(max(room, 1), REACH) - 1).bit_length()  # one of nine is hidden at most
        self._text: list[int] = []
        self._shift = 64 - bits
        self._asked: tuple[int, list[int]] = (0, [])
        # Zeros take no memory until they are overwritten, and no ending stands before place 0.
        self._places = [np.zeros(1 << bits, np.int32) for _ in SIZES]

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens behind the text."""
        done = len(self._text)
        self._text += tokens
        # An ending stands before a place, and a token behind it.
        first, end = max(done, 1), len(self._text)
        if end - first >= _FEW:
            self._remember(first, end)
            return
        for place in range(first, end):
            asked, entries = self._asked
            entries = entries if asked == place else self._entries(place)
            for places, entry in zip(self._places, entries, strict=True):
                places[entry] = place

    def _entries(self, place: int) -> list[int]:
        """Where the endings of the text before `place` are kept, one a size."""
        ending = [0] * (SIZES[0] - place) + self._text[max(place - SIZES[0], 0) : place]
        key, keys = 0, [0]
        for token in ending[::-1]:
            key = (key + token + 1) * _FACTOR & _WORD
            keys.append(key)
        return [keys[size] >> self._shift for size in SIZES]

    def _remember(self, first: int, end: int) -> None:
        """Keep the places first..end-1, the same by vectors."""
        longest, count = SIZES[0], end - first
        start = max(first - longest, 0)
        text = np.zeros(longest + end - start, np.uint64)
        text[longest:] = self._text[start:end]
        at, keys = longest + first - start, np.zeros(count, np.uint64)
        places, tables = np.arange(first, end, dtype=np.int32), dict(zip(SIZES, self._places, strict=True))
        for back in range(1, longest + 1):
            keys = (keys + text[at - back : at - back + count] + np.uint64(1)) * np.uint64(_FACTOR)
            if back in tables:  # of equal entries the last place stays
                tables[back][keys >> np.uint64(self._shift)] = places

    def following(self, limit: int) -> tuple[int, list[int]]:
        """Up to `limit` tokens that stood behind the last place whose ending is the text's, and on how many
        tokens, at most `LONGEST`, the endings agree; 0 and none where there is no such place."""
        end = len(self._text)
        entries = self._entries(end)
        self._asked = end, entries  # they are kept as soon as a token stands behind them
        for size, places, entry in zip(SIZES, self._places, entries, strict=True):
            place = int(places[entry])
            agreed = self._agreed(place)
            if agreed >= size:
                return agreed, self._text[place : place + limit]
        return 0, []

    def _agreed(self, place: int) -> int:
        """Tokens before `place` that are the text's last ones."""
        text, end = self._text, len(self._text)
        count = 0
        while count < min(place, LONGEST) and text[place - count - 1] == text[end - count - 1]:
            count += 1
        return count


def recalled_row(endings: Endings, width: int) -> list[int]:
    """`following` as a row: on how many tokens the endings agree, then `width` ids, `NOTHING` behind the
    last."""
    agreed, found = endings.following(width)
    return [agreed, *found, *[NOTHING] * (width - len(found))]


def follow(
    drafts: torch.Tensor,
    leads: torch.Tensor,
    recalled: torch.Tensor,
    drafted: torch.Tensor | None = None,
) -> torch.Tensor:
    """[S, m] drafts, replaced by the text's own past as far as it is to be believed.

    leads [S, m]: by how many nats the drafter finds each draft likelier than the recalled id at its place;
    recalled [S, 1 + n]: rows of `recalled_row`; drafted [S, k]: the drafts before these. The past is followed
    from the first draft on, up to the first recalled id that the drafter objects to too much.
    """
    first = 0 if drafted is None else drafted.shape[1]
    count = drafts.shape[1]
    ids = recalled[:, 1 + first : 1 + first + count]
    agreed = recalled[:, :1] + torch.arange(first, first + count, device=drafts.device)
    likely = leads < NATS_PER_TOKEN * agreed - NATS_OF_DOUBT
    believed = ((ids == drafts) | likely) & (ids != NOTHING)
    if drafted is not None and first:
        believed &= (drafted == recalled[:, 1 : 1 + first]).all(1, keepdim=True)
    return torch.where(believed.cumprod(1) > 0, ids, drafts)

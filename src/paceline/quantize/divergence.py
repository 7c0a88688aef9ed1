"""How far one model's next-token distributions are from another's, over full vocabularies.

The base's hidden states are kept on disk, not its distributions: at a vocabulary of 248k and a hidden size of
5120 they are 1/100 of the size and lose nothing, since the base's head turns them into its logits again, a
few rows at a time. So the two models need not fit into memory together, and no more than two blocks of
logits are there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import torch

ROWS = 64
"""Rows whose logits are in memory at a time."""
_EXACT_ROWS = 8
"""Rows whose distributions are in memory in float64 at a time."""
Head = Callable[[torch.Tensor], torch.Tensor]
"""[R, H] hidden states -> [R, V] float32 logits."""


class HiddenStore:
    """Rows [H] of one dtype in a temporary file: all are written, then any are read."""

    def __init__(self, file: BinaryIO, hidden_size: int, dtype: torch.dtype) -> None:
        self._file, self._hidden_size, self._dtype = file, hidden_size, dtype

    def append(self, rows: torch.Tensor) -> None:
        """Add rows [R, H]."""
        data = rows.to("cpu", self._dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
        self._file.write(data.tobytes())

    def read(self, first: int, count: int) -> torch.Tensor:
        """Rows `first` to `first + count - 1`, [count, H], in CPU memory."""
        size = self._hidden_size * self._dtype.itemsize
        self._file.seek(first * size)
        data = bytearray(self._file.read(count * size))
        assert len(data) == count * size, "rows were never written"
        return torch.frombuffer(data, dtype=self._dtype).view(count, self._hidden_size)


@dataclass(frozen=True, slots=True)
class Compared:
    """What one block of R rows gives; all float64 [R] but `same_top`."""

    kl: torch.Tensor
    """KL(base || model) in nats."""
    same_top: torch.Tensor
    """bool [R]: both find the same token likeliest."""
    nll_base: torch.Tensor
    """Surprise of the token that really follows, in nats; NaN where the text ends."""
    nll_model: torch.Tensor


def compare(base: torch.Tensor, model: torch.Tensor, following: torch.Tensor) -> Compared:
    """Compare logits [R, V]; following [R] int64: the token that comes next, -1 where the text ends."""
    split = (rows.split(_EXACT_ROWS) for rows in (base, model, following))
    columns = zip(*(_compare_exactly(*rows) for rows in zip(*split, strict=True)), strict=True)
    return Compared(*(torch.cat(parts).cpu() for parts in columns))


def _compare_exactly(
    base: torch.Tensor, model: torch.Tensor, following: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    # float64: a KL of 1e-6 is the sum of 248k differences of numbers near 20.
    log_p, log_q = (torch.log_softmax(logits.double(), dim=-1) for logits in (base, model))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0)
    following = following.to(base.device)
    index = following.clamp_min(0).unsqueeze(-1)
    ends = following < 0
    nll_base, nll_model = (-log.gather(-1, index).squeeze(-1) for log in (log_p, log_q))
    same_top = base.argmax(-1) == model.argmax(-1)
    nan = float("nan")
    return kl, same_top, nll_base.masked_fill(ends, nan), nll_model.masked_fill(ends, nan)


def joined(parts: list[Compared]) -> Compared:
    """All rows of several blocks."""
    return Compared(
        *(torch.cat([getattr(part, name) for part in parts]) for name in Compared.__dataclass_fields__)
    )

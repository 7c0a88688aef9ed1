"""Where the rows of a drafting pass belong: index arithmetic over S blocks of n + 1 rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.layers.batch import PagedRows, cache_rows


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """S blocks to be drafted: anchor [S] at position start [S] and `n` masks behind it, of which the first
    `wanted` are asked for."""

    anchors: torch.Tensor
    starts: torch.Tensor
    block_tables: torch.Tensor
    """[S, B] block ids."""
    n: int
    wanted: int
    max_context: int
    """Static upper bound on any position that is read or written, plus one."""
    counts: torch.Tensor | None = None
    """[S] rows of single blocks, anchor included, where some are shorter (0: a padding sequence). The rows
    beyond are padding, so a short block's drafts do not depend on the longer ones beside it."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The S * (n + 1) rows of a drafting pass, row by row of each sequence; index tensors are int64."""

    positions: torch.Tensor
    row_seq: torch.Tensor
    slot_mapping: torch.Tensor
    last: torch.Tensor
    """[R] last position of the row's block; -1 for a padding row."""
    block_tables: torch.Tensor
    max_context: int

    def seen_by(self, window: int | None, causal: bool) -> PagedRows:
        """Which cache positions each row sees in a layer of that window and causality."""
        positions = self.positions
        last = self.last
        if causal:
            last = torch.where(last < 0, -1, positions)
        if window is None:
            first = torch.zeros_like(positions)
        else:
            first = (positions - window + 1).clamp(min=0)
            last = torch.minimum(last, positions + window - 1)
        return PagedRows(
            positions, self.row_seq, first, last, self.slot_mapping, self.block_tables, self.max_context
        )


def block_rows(
    starts: torch.Tensor,
    block_tables: torch.Tensor,
    n: int,
    counts: torch.Tensor | None,
    block_size: int,
    limit: int,
) -> BlockRows:
    """Rows at starts [S] .. starts + n of sequences with tables [S, B] in cache blocks of `block_size`.

    `counts` [S] shortens single blocks (0: a padding sequence). A row at or past position `limit` is padding
    as well. On a GPU nothing waits for the host; on the CPU the same numbers come from numpy, whose small
    arrays cost a fifth of torch's.
    """
    if starts.device.type == "cpu":
        return _on_host(starts, block_tables, n, counts, block_size, limit)
    return block_rows_reference(starts, block_tables, n, counts, block_size, limit)


def block_rows_reference(
    starts: torch.Tensor,
    block_tables: torch.Tensor,
    n: int,
    counts: torch.Tensor | None,
    block_size: int,
    limit: int,
) -> BlockRows:
    """`block_rows` in torch, for any device."""
    steps = torch.arange(n + 1, device=starts.device)
    row_seq = torch.arange(starts.shape[0], device=starts.device).repeat_interleave(n + 1)
    rows = torch.full_like(starts, n + 1) if counts is None else counts
    rows = torch.minimum(rows, limit - starts)
    live = (steps < rows[:, None]).flatten()
    positions = torch.where(live, (starts[:, None] + steps).flatten(), 0)
    where = cache_rows(positions, row_seq, block_tables, block_size)
    last = torch.where(live, (starts + rows - 1).repeat_interleave(n + 1), -1)
    return BlockRows(positions, row_seq, torch.where(live, where, 0), last, block_tables, limit)


def _on_host(
    starts: torch.Tensor,
    block_tables: torch.Tensor,
    n: int,
    counts: torch.Tensor | None,
    block_size: int,
    limit: int,
) -> BlockRows:
    first, tables = starts.numpy(), block_tables.numpy()
    rows = np.minimum(n + 1 if counts is None else counts.numpy(), limit - first)
    row_seq = np.arange(first.shape[0]).repeat(n + 1)
    at = (first[:, None] + np.arange(n + 1)).ravel()
    end = (first + rows).repeat(n + 1)
    live = at < end
    positions = np.where(live, at, 0)
    column, offset = np.divmod(positions, block_size)
    inside = column < tables.shape[1]
    block = tables[row_seq, np.minimum(column, tables.shape[1] - 1)]
    mapping = np.where(live, np.where(inside, block, 0) * block_size + offset, 0)
    return BlockRows(
        positions=torch.from_numpy(positions),
        row_seq=torch.from_numpy(row_seq),
        slot_mapping=torch.from_numpy(mapping),
        last=torch.from_numpy(np.where(live, end - 1, -1)),
        block_tables=block_tables,
        max_context=limit,
    )

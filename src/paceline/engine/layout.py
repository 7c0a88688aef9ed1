"""Verification windows laid out on the device, for a decode step that is captured once and replayed.

Sequence i has rows i * max_rows .. (i + 1) * max_rows - 1, of which the first `rows[i]` count; the others are
padding. Lengths, tables and slots are tensors that the step itself moves forward, so a replay needs nothing
from the host.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike

import torch

from paceline.cache.base import NULL_BLOCK
from paceline.engine.plan import Window
from paceline.engine.tables import HostTables
from paceline.layers.batch import FlatBatch, cache_rows


def layout_windows(
    lengths: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    block_tables: torch.Tensor,
    pending: torch.Tensor,
    *,
    max_rows: int,
    block_size: int,
    max_context: int,
) -> FlatBatch:
    """Lay out S windows of up to `max_rows` rows: S * max_rows rows of a pass, padding included.

    lengths (committed), rows (0: padding), slots, pending [S], block_tables [S, B]: int64. `max_context` is
    a static bound on any position that a window may reach, plus one. Nothing waits for the host.
    """
    sequences = torch.arange(lengths.shape[0], device=lengths.device)
    offset = torch.arange(max_rows, device=lengths.device)
    live = offset < rows[:, None]  # [S, max_rows]
    positions, live = torch.where(live, lengths[:, None] + offset, 0).flatten(), live.flatten()
    # Not an expanded view: of one sequence it would keep a stride of 0, and operators read plain memory.
    row_seq = sequences.repeat_interleave(max_rows)
    stored = cache_rows(positions, row_seq, block_tables, block_size)
    return FlatBatch(
        kind="window",
        positions=positions,
        row_seq=row_seq,
        row_first=torch.zeros_like(positions),
        row_last=torch.where(live, positions, -1),
        slot_mapping=torch.where(live, stored, NULL_BLOCK * block_size),
        block_tables=block_tables,
        slots=slots,
        pending=pending,
        fresh=torch.zeros_like(slots, dtype=torch.bool),
        row_start=sequences * max_rows,
        row_count=rows,
        max_rows=max_rows,
        max_context=max_context,
    )


class WindowLayout:
    """A bucket of S windows whose numbers live in device tensors at fixed addresses.

    `load` fills them from the host between replays, without waiting; `batch` and `advance` are tensor work
    that belongs into the captured step.
    """

    def __init__(
        self,
        *,
        num_seqs: int,
        max_rows: int,
        max_blocks: int,
        block_size: int,
        max_context: int,
        device: torch.device | str,
    ) -> None:
        self.num_seqs, self.max_rows, self.max_blocks = num_seqs, max_rows, max_blocks
        self.block_size, self.max_context = block_size, max_context
        self._packed = torch.zeros(4 + max_blocks, num_seqs, dtype=torch.int64, device=device)
        self._tables = HostTables(num_seqs + 1, max_blocks)  # by slot: places move up when one ends
        self.lengths, self.rows, self.slots, self.pending = self._packed[:4]
        self.block_tables = self._packed[4:].view(num_seqs, max_blocks)

    def load(self, windows: ListLike[Window]) -> None:
        """Take up to S windows; the rest of the bucket becomes padding."""
        assert len(windows) <= self.num_seqs, f"{len(windows)} windows in a bucket of {self.num_seqs}"
        on_gpu = self._packed.is_cuda
        host = torch.zeros(self._packed.shape, dtype=torch.int64, pin_memory=on_gpu)
        count, sequences = len(windows), [window.sequence for window in windows]
        slots = [sequence.slot for sequence in sequences]
        widest = max((window.rows for window in windows), default=0)
        assert widest <= self.max_rows, f"a window of {widest} rows, {self.max_rows} at most"
        numbers = host[:4].numpy()
        numbers[0, :count] = [sequence.length for sequence in sequences]
        numbers[1, :count] = [window.rows for window in windows]
        numbers[2, :count] = slots
        numbers[3, :count] = [sequence.pending for sequence in sequences]
        for sequence in sequences:
            self._tables.put(sequence.slot, sequence)
        tables = host[4:].view(self.num_seqs, self.max_blocks).numpy()
        tables[:count] = self._tables.ids[slots]  # padding keeps the null block
        self._packed.copy_(host, non_blocking=on_gpu)

    def batch(self) -> FlatBatch:
        """The windows as they stand now."""
        return layout_windows(
            self.lengths,
            self.rows,
            self.slots,
            self.block_tables,
            self.pending,
            max_rows=self.max_rows,
            block_size=self.block_size,
            max_context=self.max_context,
        )

    def advance(self, counts: torch.Tensor) -> None:
        """Commit `counts` [S] rows of each window (0 for padding): they wait to be replayed."""
        self.lengths.add_(counts)
        self.pending.copy_(counts)

"""From a step's plan to the index tensors of a pass: packed on the host, without padding.

The right form for a CPU, where a padded row costs a row, and for eager passes on any device.
`engine.layout` lays the same windows out on the device in a bucket of fixed size, for captured graphs; row
by row the two agree.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.plan import PrefillChunk, Window
from paceline.engine.sequence import Sequence
from paceline.engine.tables import HostTables, Ints
from paceline.layers.batch import FlatBatch, PassKind

_ALIGN = 4  # elements: pieces of one transfer start at multiples of 32 bytes, as kernels like their pointers


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """Where S sequences stand before a proposer drafts for them; int64, on the model's device."""

    lengths: torch.Tensor
    """[S] committed length: the anchor's position."""
    slots: torch.Tensor
    """[S] state slots."""
    block_tables: torch.Tensor
    """[S, B] block ids, padded with 0."""
    max_context: int
    """Upper bound on any position that drafting reads or writes, plus one."""


class BatchBuilder:
    """Lays out prompt chunks and windows; keeps a host copy of each slot's block table between steps.

    Nothing here waits for the device: a batch goes there in one transfer from pinned memory.
    """

    def __init__(
        self, *, block_size: int, num_slots: int, max_blocks: int, device: torch.device | str
    ) -> None:
        """`num_slots` counts the null slot; `max_blocks` is the longest block table, scratch included."""
        self.block_size = block_size
        self.device = torch.device(device)
        self._tables = HostTables(num_slots, max_blocks)  # by slot

    def build_prefill(self, chunks: ListLike[PrefillChunk]) -> FlatBatch:
        """Rows of prompt chunks, each of another sequence, one behind the other."""
        return self._pack(
            "prefill", [c.sequence for c in chunks], [c.start for c in chunks], [c.count for c in chunks]
        )

    def build_windows(self, windows: ListLike[Window]) -> FlatBatch:
        """Rows of verification windows, one behind the other."""
        sequences = [w.sequence for w in windows]
        return self._pack("window", sequences, [s.length for s in sequences], [w.rows for w in windows])

    def build_drafts(self, sequences: ListLike[Sequence], num_drafts: int) -> DraftLayout:
        """What a proposer needs to draft up to `num_drafts` tokens behind each sequence's anchor."""
        lengths = [s.length for s in sequences]
        slots = np.array([s.slot for s in sequences], np.int64)
        tables = self._block_tables(sequences, slots)
        up = self._upload(np.array(lengths, np.int64), slots, tables)
        return DraftLayout(up[0], up[1], up[2], max_context=max(lengths) + num_drafts + 1)

    def _pack(
        self, kind: PassKind, sequences: ListLike[Sequence], starts: list[int], counts: list[int]
    ) -> FlatBatch:
        """R = sum(counts) rows: `counts[i]` of sequence i from position `starts[i]` on."""
        slots = np.array([s.slot for s in sequences], np.int64)
        pending = np.array([s.pending for s in sequences], np.int64)
        tables = self._block_tables(sequences, slots)
        position, row_seq, row_start, row_count = _rows(starts, counts)
        block, offset = np.divmod(position, self.block_size)
        mapping = tables[row_seq, block] * self.block_size + offset
        fresh = np.array([kind == "prefill" and start == 0 for start in starts], np.int64)
        zeros = np.zeros(len(position), np.int64)
        up = self._upload(
            position, row_seq, zeros, mapping, tables, slots, pending, fresh, row_start, row_count
        )
        return FlatBatch(
            kind=kind,
            positions=up[0],
            row_seq=up[1],
            row_first=up[2],
            row_last=up[0],
            slot_mapping=up[3],
            block_tables=up[4],
            slots=up[5],
            pending=up[6],
            fresh=up[7].bool(),
            row_start=up[8],
            row_count=up[9],
            max_rows=max(counts),
            max_context=max(map(sum, zip(starts, counts, strict=True))),
        )

    def _block_tables(self, sequences: ListLike[Sequence], slots: Ints) -> Ints:
        """[S, B] block ids, padded with 0 to the longest table of the step."""
        for sequence in sequences:
            self._tables.put(sequence.slot, sequence)
        width = max(len(sequence.blocks) for sequence in sequences)
        return self._tables.ids[:, :width].take(slots, axis=0)

    def _upload(self, *arrays: Ints) -> list[torch.Tensor]:
        """The arrays as tensors on the device."""
        if self.device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        starts = np.cumsum([0, *(-(-array.size // _ALIGN) * _ALIGN for array in arrays)]).tolist()
        host = torch.empty(starts[-1], dtype=torch.int64, pin_memory=True)
        flat = host.numpy()
        for start, array in zip(starts, arrays, strict=False):
            flat[start : start + array.size] = array.ravel()
        packed = host.to(self.device, non_blocking=True)
        return [
            packed[start : start + array.size].view(array.shape)
            for start, array in zip(starts, arrays, strict=False)
        ]


def _rows(starts: list[int], counts: list[int]) -> tuple[Ints, Ints, Ints, Ints]:
    """Positions and sequence of each row, first row and number of rows of each sequence."""
    row_count = np.array(counts, np.int64)
    row_start = row_count.cumsum() - row_count
    first = np.array(starts, np.int64)
    rows = sum(counts)
    if rows == len(counts):  # plain decoding: one row each
        return first, row_start, row_start, row_count
    row_seq = np.repeat(np.arange(len(counts)), row_count)
    return np.arange(rows) + (first - row_start)[row_seq], row_seq, row_start, row_count

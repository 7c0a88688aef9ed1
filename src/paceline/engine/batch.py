"""From a step's plan to the index tensors of a pass: packed on the host, without padding.

The right form for a CPU, where a padded row costs a row, and for eager passes on any device.
`engine.layout` lays the same windows out on the device in a bucket of fixed size, for captured graphs; row
by row the two agree.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from paceline.engine.plan import PrefillChunk, Window
from paceline.engine.sequence import Sequence
from paceline.engine.tables import HostTables, Ints
from paceline.layers.batch import FlatBatch, PassKind

_FEW_ROWS = 64  # up to which lists of Python integers take less time than numpy's operators
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
        few = self.device.type == "cpu" and sum(counts) <= _FEW_ROWS
        index = (self._index_of_few if few else self._index)(sequences, starts, counts)
        fresh = np.array([kind == "prefill" and start == 0 for start in starts])
        positions, row_seq, zeros, mapping, tables, slots, pending, row_start, row_count = index
        return FlatBatch(
            kind=kind,
            positions=positions,
            row_seq=row_seq,
            row_first=zeros,
            row_last=positions,
            slot_mapping=mapping,
            block_tables=tables,
            slots=slots,
            pending=pending,
            fresh=self._upload_flags(fresh),
            row_start=row_start,
            row_count=row_count,
            max_rows=max(counts),
            max_context=max(map(sum, zip(starts, counts, strict=True))),
        )

    def _index(
        self, sequences: ListLike[Sequence], starts: list[int], counts: list[int]
    ) -> list[torch.Tensor]:
        """Position, sequence, zero and cache row of each row; table, slot, pending rows, first row and number
        of rows of each sequence."""
        slots = np.array([s.slot for s in sequences], np.int64)
        pending = np.array([s.pending for s in sequences], np.int64)
        tables = self._block_tables(sequences, slots)
        position, row_seq, row_start, row_count = _rows(starts, counts)
        block, offset = np.divmod(position, self.block_size)
        mapping = tables[row_seq, block] * self.block_size + offset
        zeros = np.zeros(len(position), np.int64)
        return self._upload(position, row_seq, zeros, mapping, tables, slots, pending, row_start, row_count)

    def _index_of_few(
        self, sequences: ListLike[Sequence], starts: list[int], counts: list[int]
    ) -> list[torch.Tensor]:
        """`_index` of a few rows on the CPU: Python's own integers, and one array for all of them."""
        size, rows, count = self.block_size, sum(counts), len(sequences)
        positions: list[int] = []
        owners: list[int] = []
        mapping: list[int] = []
        firsts: list[int] = []
        for index, (sequence, start, own) in enumerate(zip(sequences, starts, counts, strict=True)):
            firsts.append(len(positions))
            mine, blocks = range(start, start + own), sequence.blocks
            positions += mine
            owners += [index] * own
            mapping += [blocks[at // size] * size + at % size for at in mine]
        slots, pending = [s.slot for s in sequences], [s.pending for s in sequences]
        numbers = [*positions, *owners, *[0] * rows, *mapping, *slots, *pending, *firsts, *counts]
        flat = torch.from_numpy(np.array(numbers, np.int64)).split([rows] * 4 + [count] * 4)
        tables = torch.from_numpy(self._block_tables(sequences, np.array(slots, np.int64)))
        return [*flat[:4], tables, *flat[4:]]

    def _block_tables(self, sequences: ListLike[Sequence], slots: Ints) -> Ints:
        """[S, B] block ids, padded with 0 to the longest table of the step."""
        for sequence in sequences:
            self._tables.put(sequence.slot, sequence)
        width = max(len(sequence.blocks) for sequence in sequences)
        if len(sequences) == 1:
            return self._tables.ids[slots[0] : slots[0] + 1, :width].copy()
        return self._tables.ids[:, :width].take(slots, axis=0)

    def _upload_flags(self, flags: npt.NDArray[np.bool_]) -> torch.Tensor:
        """Booleans as a tensor on the device."""
        if self.device.type == "cpu":
            return torch.from_numpy(flags)
        return self._upload(flags.astype(np.int64))[0].bool()

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

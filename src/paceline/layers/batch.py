"""The flat batch: one forward pass over the rows of many sequences, as index tensors.

A pass runs R rows (tokens) of S sequences. Everything that tells rows and sequences apart is in the tensors
of `FlatBatch`, so a layer never loops over sequences and never looks at a value on the host: the same pass
can be captured in a CUDA graph and replayed with other lengths, block tables and slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

PassKind = Literal["prefill", "window"]


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Where each of the R rows of a pass belongs; index tensors are int64 and share the model's device.

    `kind` picks the arithmetic of the recurrent layers alone: "prefill" reads and writes the state at once
    (chunked), "window" first replays the `pending` rows of the previous window and then keeps the new rows
    aside, because how many of them survive is known only after verification.

    Rows outside every sequence are padding: `slot_mapping` points into the null block 0 and
    `row_last < row_first`. A padding sequence has `slots == 0` (the null slot) and `row_count == 0`.
    """

    kind: PassKind
    positions: torch.Tensor
    """[R] absolute position of the row's token in its sequence."""
    row_seq: torch.Tensor
    """[R] index into the S sequences."""
    row_first: torch.Tensor
    """[R] first cache position that the row sees, inclusive."""
    row_last: torch.Tensor
    """[R] last cache position that the row sees, inclusive (its own for causal attention)."""
    slot_mapping: torch.Tensor
    """[R] where the row's key and value are stored: block id * block size + offset."""
    block_tables: torch.Tensor
    """[S, B] block ids of each sequence, padded with 0."""
    slots: torch.Tensor
    """[S] recurrent state slot of each sequence."""
    pending: torch.Tensor
    """[S] rows of the slot's last window that are committed but not yet replayed (0 for "prefill")."""
    fresh: torch.Tensor
    """[S] bool: the sequence starts from the zero state ("prefill" only)."""
    row_start: torch.Tensor
    """[S] first row of the sequence in this pass."""
    row_count: torch.Tensor
    """[S] rows of the sequence in this pass."""
    max_rows: int
    """Static upper bound on `row_count`."""
    max_context: int
    """Static upper bound on `row_last + 1`."""

    @property
    def num_rows(self) -> int:
        """R, padding included."""
        return self.positions.shape[0]

    @property
    def num_sequences(self) -> int:
        """S, padding included."""
        return self.slots.shape[0]


class AttentionRows(Protocol):
    """The part of a batch that attention reads: a `FlatBatch`, or `PagedRows` for a model of attention
    alone."""

    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def row_seq(self) -> torch.Tensor: ...
    @property
    def row_first(self) -> torch.Tensor: ...
    @property
    def row_last(self) -> torch.Tensor: ...
    @property
    def slot_mapping(self) -> torch.Tensor: ...
    @property
    def block_tables(self) -> torch.Tensor: ...
    @property
    def max_context(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Rows of a pass without recurrent layers; fields as in `FlatBatch`."""

    positions: torch.Tensor
    row_seq: torch.Tensor
    row_first: torch.Tensor
    row_last: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    max_context: int


def cache_rows(
    positions: torch.Tensor, row_seq: torch.Tensor, block_tables: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Where absolute `positions` [R] of the sequences `row_seq` [R] are stored; beyond the table: the null
    block.

    Returns [R] int64, block id * block size + offset. Nothing waits for the host.
    """
    column = positions // block_size
    inside = column < block_tables.shape[1]
    block = block_tables[row_seq, column.clamp(max=block_tables.shape[1] - 1)]
    return torch.where(inside, block, 0) * block_size + positions % block_size

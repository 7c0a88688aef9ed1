"""Runs a target as the engine would, for one or several sequences, with a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch

from paceline.kernels.gated_delta import DeltaState, commit
from paceline.layers.batch import FlatBatch, cache_rows
from paceline.models.base import KVPair, TargetCache, TargetModel, TargetOutput

BLOCK = 16
WINDOW = 16


def new_kv(
    layers: int,
    kv_heads: int,
    head_dim: int,
    sequences: int,
    length: int,
    dtype: torch.dtype,
    device: str = "cpu",
) -> list[KVPair]:
    """Poisoned caches of `layers` layers: block 0, then enough blocks for every sequence."""
    blocks = 1 + sequences * blocks_of(length)

    def make() -> torch.Tensor:
        return torch.full((blocks, BLOCK, kv_heads, head_dim), float("nan"), dtype=dtype, device=device)

    return [(make(), make()) for _ in range(layers)]


def blocks_of(length: int) -> int:
    """Blocks that hold `length` positions."""
    return -(-length // BLOCK)


def tables(sequences: int, length: int) -> torch.Tensor:
    """[sequences, B] block ids; neighbours in a sequence are not neighbours in the cache."""
    return 1 + torch.arange(sequences * blocks_of(length)).view(blocks_of(length), sequences).T.contiguous()


def moved(batch: FlatBatch, device: str) -> FlatBatch:
    """The batch with its tensors on `device`."""
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return FlatBatch(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in values.items()})


class Runner:
    """One target with its cache; sequence i owns slot i + 1."""

    def __init__(
        self, model: TargetModel, sequences: int = 1, length: int = 256, device: str = "cpu"
    ) -> None:
        spec = model.spec
        self.model, self.length, self.device = model, length, device
        self.tables = tables(sequences, length)
        self.committed = [0] * sequences
        self.pending = [0] * sequences
        delta = [
            DeltaState.allocate(
                sequences + 1, WINDOW, spec.delta_shape, spec.dtype, device, fill=float("nan")
            )
            for _ in spec.linear_layers
        ]
        layers = len(spec.full_layers)
        kv = new_kv(layers, spec.kv_heads, spec.head_dim, sequences, length, spec.dtype, device)
        self.cache = TargetCache(kv, delta)

    def prefill(self, ids: Sequence[int], sequence: int = 0, taps: tuple[int, ...] = ()) -> TargetOutput:
        """Append a prompt chunk to one sequence."""
        fresh = self.committed[sequence] == 0
        if self.pending[sequence]:
            self.settle(sequence)
        out = self._run("prefill", [list(ids)], [sequence], taps, fresh)
        self.committed[sequence] += len(ids)
        return out

    def window(
        self, windows: Sequence[Sequence[int]], accepted: Sequence[int], taps: tuple[int, ...] = ()
    ) -> TargetOutput:
        """Run one window of each sequence side by side; the first `accepted` rows of each become
        committed."""
        sequences = list(range(len(windows)))
        out = self._run("window", [list(w) for w in windows], sequences, taps, False)
        for sequence, count in zip(sequences, accepted, strict=True):
            self.committed[sequence] += count
            self.pending[sequence] = count
        return out

    def settle(self, sequence: int) -> None:
        """Replay the pending rows onto the state."""
        slot = torch.tensor([sequence + 1], device=self.device)
        count = torch.tensor([self.pending[sequence]], device=self.device)
        for state in self.cache.delta:
            commit(state, slot, slot, count)
        self.pending[sequence] = 0

    def _run(
        self, kind: str, rows: list[list[int]], sequences: list[int], taps: tuple[int, ...], fresh: bool
    ) -> TargetOutput:
        batch = moved(self._batch(kind, rows, sequences, fresh), self.device)
        ids = torch.tensor([i for r in rows for i in r], device=self.device)
        return self.model.forward(ids, batch, self.cache, taps)

    def _batch(self, kind: str, rows: list[list[int]], sequences: list[int], fresh: bool) -> FlatBatch:
        counts = torch.tensor([len(r) for r in rows])
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)[:-1]])
        row_seq = torch.repeat_interleave(torch.arange(len(rows)), counts)
        begin = torch.tensor([self.committed[s] for s in sequences])
        positions = torch.cat(
            [b + torch.arange(c) for b, c in zip(begin.tolist(), counts.tolist(), strict=True)]
        )
        block_tables = self.tables[sequences]
        return FlatBatch(
            kind=kind,  # type: ignore[arg-type]
            positions=positions,
            row_seq=row_seq,
            row_first=torch.zeros_like(positions),
            row_last=positions,
            slot_mapping=cache_rows(positions, row_seq, block_tables, BLOCK),
            block_tables=block_tables,
            slots=torch.tensor(sequences) + 1,
            pending=torch.tensor([self.pending[s] for s in sequences]),
            fresh=torch.full((len(rows),), fresh),
            row_start=starts,
            row_count=counts,
            max_rows=int(counts.max()),
            max_context=int(positions.max()) + 1,
        )

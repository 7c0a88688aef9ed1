"""The multi-token head as a proposer: what it asks of the head beyond a sequence's blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from paceline.layers.batch import FlatBatch
from paceline.speculate.base import DraftRequest, ObservedRows
from paceline.speculate.mtp import MTPProposer

BLOCK, HIDDEN, VOCAB = 4, 6, 5


class Head:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def forward(self, **asked: Any) -> torch.Tensor:
        self.calls.append(asked)
        return torch.zeros(len(asked["positions"]), HIDDEN)


def proposer(head: Head) -> MTPProposer:
    spec = SimpleNamespace(hidden_size=HIDDEN)
    target = SimpleNamespace(spec=spec, logits=lambda hidden: torch.zeros(len(hidden), VOCAB))
    kv = (torch.zeros(9, BLOCK, 1, 2), torch.zeros(9, BLOCK, 1, 2))
    return MTPProposer(head, target, kv, 3, num_slots=3)  # type: ignore[arg-type]


def test_rows_beyond_the_blocks_are_padding() -> None:
    """The last row of a sequence that fills its blocks would lie in a block that it has not."""
    head = Head()
    positions, tables = torch.tensor([6, 7]), torch.tensor([[5, 8]])
    zero = torch.zeros(1, dtype=torch.int64)
    batch = FlatBatch(
        kind="window", positions=positions, row_seq=torch.tensor([0, 0]), row_first=torch.zeros(2).long(),
        row_last=positions, slot_mapping=positions, block_tables=tables, slots=zero + 1, pending=zero,
        fresh=zero.bool(), row_start=zero, row_count=zero + 2, max_rows=2, max_context=8,
    )  # fmt: skip
    rows = ObservedRows(batch, torch.zeros(2, HIDDEN), None, torch.tensor([1, 2]), last_rows=zero + 1)
    proposer(head).observe(rows)
    assert head.calls[0]["positions"].tolist() == [7, 0]
    assert head.calls[0]["slot_mapping"].tolist() == [8 * BLOCK + 3, 0]


def test_drafts_beyond_the_blocks_are_padding() -> None:
    head = Head()
    request = DraftRequest(
        anchors=torch.tensor([1]), lengths=torch.tensor([6]), slots=torch.tensor([1]),
        block_tables=torch.tensor([[5, 8]]), limits=[3], rows=None, histories=None,
        choose=lambda logits, first, drafted: logits.argmax(-1), max_context=10,
    )  # fmt: skip
    assert proposer(head).propose(request).counts == [3]
    assert [call["positions"].tolist() for call in head.calls] == [[7], [0]]
    assert [call["slot_mapping"].tolist() for call in head.calls] == [[8 * BLOCK + 3], [0]]

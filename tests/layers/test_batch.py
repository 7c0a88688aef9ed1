"""Where positions are stored."""

from __future__ import annotations

import torch

from paceline.layers.batch import cache_rows


def test_positions_follow_the_block_table() -> None:
    tables = torch.tensor([[4, 2, 0], [7, 0, 0]])
    positions, row_seq = torch.tensor([0, 15, 16, 3]), torch.tensor([0, 0, 0, 1])
    assert cache_rows(positions, row_seq, tables, 16).tolist() == [64, 79, 32, 115]


def test_beyond_the_table_is_the_null_block() -> None:
    tables = torch.tensor([[4, 2]])
    where = cache_rows(torch.tensor([31, 32, 1000]), torch.zeros(3, dtype=torch.int64), tables, 16)
    assert where.tolist() == [47, 0, 8]

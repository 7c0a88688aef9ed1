"""The drafting pass's index arithmetic: numpy on the host against torch."""

from __future__ import annotations

import pytest
import torch

from paceline.models.dflash_block import block_rows, block_rows_reference


@pytest.mark.parametrize("counts", [None, [4, 0, 8, 1, 5]])
@pytest.mark.parametrize("limit", [23, 1000])
def test_host_and_torch_lay_out_the_same_rows(counts: list[int] | None, limit: int) -> None:
    starts = torch.tensor([0, 7, 16, 20, 31])
    tables = torch.randint(1, 50, (5, 5))
    shortened = None if counts is None else torch.tensor(counts)
    host = block_rows(starts, tables, 7, shortened, 8, limit)
    reference = block_rows_reference(starts, tables, 7, shortened, 8, limit)
    for name in ("positions", "row_seq", "slot_mapping", "last", "block_tables"):
        assert torch.equal(getattr(host, name), getattr(reference, name)), name
    assert host.max_context == reference.max_context == limit

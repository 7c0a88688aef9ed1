"""What is drawn over many seeds is the softmax of what survives the filters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from paceline.config.sampling import SamplingParams
from paceline.kernels.sample import request_key
from paceline.speculate.sampler import Sampler, SampleRows, SamplingRequest
from tests.speculate.sampling_oracle import processed_row

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "temperature": {"temperature": 0.7, "top_k": 6},
}


@pytest.mark.parametrize("name", FILTERS)
def test_frequencies_over_20000_seeds(name: str) -> None:
    """Chi-square against softmax over what survives the filter."""
    seeds, vocab = 20_000, 9
    logits = torch.tensor([[2.0, 1.5, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0]])
    params = SamplingParams(**FILTERS[name])
    sampler = Sampler(vocab, seeds + 1, "cpu")
    sampler.add(1, SamplingRequest(params, 0, [0], ()))
    # All slots get this request's parameters and a key of their own.
    for table in vars(sampler.tables).values():
        if isinstance(table, torch.Tensor):
            table[2:] = table[1].clone()
    sampler.tables.key[1:] = torch.tensor([request_key(seed, 0) for seed in range(seeds)])
    slots = torch.arange(1, seeds + 1)
    rows = SampleRows.single(slots, torch.full_like(slots, 17))
    counts = torch.bincount(sampler.sample(logits.expand(seeds, -1), rows), minlength=vocab)
    wanted = torch.softmax(torch.tensor(processed_row(logits[0], params, [0], [])).double(), -1)
    live = wanted > 0
    assert int(counts[~live].sum()) == 0
    expected = wanted[live] * seeds
    statistic = float(((counts[live] - expected) ** 2 / expected).sum())
    freedom = int(live.sum()) - 1
    # Wilson and Hilferty's approximation of the 99.9 % quantile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, (name, statistic, limit)

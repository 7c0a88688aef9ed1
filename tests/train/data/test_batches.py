"""Batches: packed whole, every sample once an epoch, and a pure function of (seed, step, rank, world)."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import torch

from paceline.errors import ConfigError
from paceline.train.data.batches import SampleBatches, pack
from paceline.train.data.shards import Sample

PAD = 0


def samples(count: int = 40, seed: int = 0) -> list[Sample]:
    """Samples of which every one has tokens of its own: 100 + i throughout the prompt, 1000 + i behind."""
    rng = np.random.default_rng(seed)
    return [
        Sample(str(i), None, False, [100 + i] * rng.integers(1, 6), [1000 + i] * rng.integers(1, 12), "stop")
        for i in range(count)
    ]


def batches(data=None, **changes) -> SampleBatches:
    settings = {"rows": 2, "length": 32, "pad_id": PAD, "seed": 5, **changes}
    return SampleBatches(samples() if data is None else data, **settings)


def documents_of(batch):
    """(ids, mask) of every document of a batch, in order."""
    for row in range(batch.ids.shape[0]):
        for number in range(1, int(batch.documents[row].max()) + 1):
            here = batch.documents[row] == number
            yield batch.ids[row][here].tolist(), batch.loss_mask[row][here].tolist()


@pytest.mark.parametrize("world", [1, 3])
def test_an_epoch_holds_every_sample_whole(world):
    made = batches()
    seen: Counter[int] = Counter()
    data = samples()
    for step in range(made.steps_per_epoch(world)):
        for rank in range(world):
            for ids, mask in documents_of(made.batch(step, rank, world)):
                index = ids[0] - 100
                want = data[index]
                assert ids == want.prompt_ids + want.answer_ids
                assert mask == [False] * len(want.prompt_ids) + [True] * len(want.answer_ids)
                seen[index] += 1
    assert set(seen) == set(range(len(data)))
    surplus = made.steps_per_epoch(world) * world * made.rows - made.num_rows
    assert 0 <= surplus < world * made.rows
    if not surplus:
        assert set(seen.values()) == {1}


def test_documents_are_contiguous_and_padding_is_marked():
    batch = batches().batch(0)
    assert batch.ids.shape == batch.loss_mask.shape == batch.documents.shape == (2, 32)
    assert (batch.ids.dtype, batch.loss_mask.dtype) == (torch.int64, torch.bool)
    padding = batch.documents == 0
    assert bool((batch.ids[padding] == PAD).all()) and not bool(batch.loss_mask[padding].any())
    for row in batch.documents.tolist():
        used = [number for number in row if number]
        assert used == sorted(used) and row[: len(used)] == used


def test_a_batch_depends_on_its_step_alone():
    one, other = batches(), batches()
    last = 3 * one.steps_per_epoch(2)
    want = {(s, r): one.batch(s, r, 2).ids for s in range(last) for r in range(2)}
    for step, rank in reversed(want):  # another order, another object
        assert torch.equal(other.batch(step, rank, 2).ids, want[step, rank])
    differs = batches(seed=6)
    assert any(not torch.equal(differs.batch(s, r, 2).ids, ids) for (s, r), ids in want.items())


def test_epochs_come_in_different_orders():
    made = batches()
    steps = made.steps_per_epoch()
    first, second = (torch.cat([made.batch(e * steps + s).ids for s in range(steps)]) for e in range(2))
    assert not torch.equal(first, second)
    rows = [sorted(map(tuple, epoch.tolist()))[: made.num_rows] for epoch in (first, second)]
    if made.num_rows % made.rows == 0:
        assert rows[0] == rows[1]
    assert set(rows[0]) == set(rows[1])


def test_ranks_of_a_step_share_its_rows():
    """Two ranks with two rows see what one rank with four does."""
    two, four = batches(), batches(rows=4)
    for step in range(four.steps_per_epoch()):
        both = torch.cat([two.batch(step, rank, 2).ids for rank in range(2)])
        assert torch.equal(both, four.batch(step).ids)


def test_what_is_too_long_loses_its_end_or_is_left_out():
    data = [
        Sample("cut", None, False, [7] * 4, [8] * 9, "stop"),
        Sample("out", None, False, [9] * 10, [8], "stop"),
    ]
    with pytest.warns(UserWarning, match="1 samples have no answer within 10 tokens"):
        made = batches(data, rows=1, length=10)
    assert (made.num_truncated, made.num_left_out, made.num_samples) == (1, 1, 1)
    assert made.batch(0).ids.tolist() == [[7] * 4 + [8] * 6]
    assert made.num_answer_tokens == 6 == int(made.batch(0).loss_mask.sum())
    with pytest.raises(ConfigError, match="larger length"):
        batches(data[1:], length=10)


def test_packing_is_best_fit():
    lengths = np.array([5, 7, 3, 5, 2])
    assert pack(lengths, np.arange(5), 10) == [[0, 3], [1, 2], [4]]


def test_packing_against_a_plain_search():
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 60, 300)
    order = rng.permutation(300)
    used: list[int] = []  # tokens of each row; equally full rows are alike
    for length in lengths[order].tolist():
        fits = [at for at, tokens in enumerate(used) if tokens + length <= 64]
        if fits:
            used[max(fits, key=used.__getitem__)] += length
        else:
            used.append(length)
    packed = pack(lengths, order, 64)
    assert sorted(sum(lengths[s] for s in row) for row in packed) == sorted(used)
    assert sorted(s for row in packed for s in row) == list(range(300))


def test_millions_of_tokens_pack_in_a_moment():
    lengths = np.random.default_rng(0).integers(20, 400, 20_000)  # 4 M tokens
    start = time.process_time()
    packed = pack(lengths, np.arange(len(lengths)), 4096)
    assert time.process_time() - start < 2
    assert lengths.sum() > 0.99 * 4096 * len(packed)

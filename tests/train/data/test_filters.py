"""Filters: loops are found, what is dropped is remembered."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.train.data.filters import DropLog, reason_to_drop, repeated_share
from paceline.train.data.shards import Sample
from paceline.train.settings.data import FilterSettings


def plain_share(ids, gram):
    """The definition, read out loud."""
    grams = [tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)]
    inside = set()
    for start, one in enumerate(grams):
        if grams.count(one) > 1:
            inside.update(range(start, start + gram))
    return len(inside) / len(ids) if ids else 0.0


@pytest.mark.parametrize("seed", range(6))
def test_repeated_share_against_its_definition(seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 3, 60 + seed).tolist() + [0, 1, 2] * seed
    for gram in (2, 4, 7):
        assert repeated_share(ids, gram) == pytest.approx(plain_share(ids, gram))


def test_repeated_share_of_plain_cases():
    assert repeated_share([]) == repeated_share([1] * 12) == 0.0
    assert repeated_share([1] * 13) == 1.0
    once = list(range(20))
    assert repeated_share(once) == 0.0
    assert repeated_share([*once, 99, *once]) == pytest.approx(40 / 41)


def sample(ids, finish="stop"):
    return Sample("a", None, False, [1], ids, finish)


def test_reasons():
    settings = FilterSettings()
    assert reason_to_drop(sample([5, 2]), settings) is None
    assert reason_to_drop(sample([2]), settings) == "short"
    assert reason_to_drop(sample([5] * 40), settings) == "repetition"
    assert reason_to_drop(sample([5] * 40, "length"), settings) == "cut"
    assert reason_to_drop(sample([5, 6], "length"), FilterSettings(cut="keep")) is None
    assert reason_to_drop(sample([5] * 40), FilterSettings(max_repeated=None)) is None


def test_the_log_survives_a_torn_line(tmp_path):
    log = DropLog(tmp_path)
    log.add(sample([5] * 40), "cut")
    log.add(Sample("b", None, False, [1], [2], "stop"), "short")
    log.close()
    path = tmp_path / "dropped.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = DropLog(tmp_path)
    assert (again.done, dict(again.counts), again.tokens) == ({"a"}, {"cut": 1}, 40)
    path.write_text('{"id": "a"}\n')
    with pytest.raises(ConfigError, match=r"line 1: unreadable: --force"):
        DropLog(tmp_path)

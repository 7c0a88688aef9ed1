"""Which tokens of the model's own answers are unlearnt, and that unlearning them ends a loop."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.train.data.shards import Sample, ShardWriter
from paceline.train.settings.target import LoopSource
from paceline.train.targets.command import prepare, run_target
from paceline.train.targets.loops import looped, read_loops, repeats
from tests import tiny
from tests.train.targets.small import settings, write_corpus


def sample(answer, prompt=(1, 2), name="a"):
    return Sample(name, None, False, list(prompt), list(answer), "length")


def test_the_first_time_round_and_the_way_into_the_second_are_left_alone():
    assert np.flatnonzero(repeats([5, 6, 7, 5, 6, 7, 5, 6], 3)).tolist() == [5, 6, 7]
    assert np.flatnonzero(repeats([5, 5, 5, 5], 2)).tolist() == [2, 3]
    assert not repeats([5, 6], 3).any() and not repeats([], 3).any()


def test_answers_without_loops_are_left_out_and_long_ones_cut():
    samples = [sample([3, 4, 5]), sample([3, 4, 3, 4, 3, 4], name="b"), sample([9, 9, 9], (1,) * 8, "c")]
    ((ids, flags),) = looped(samples, 2, 7)
    assert ids.tolist() == [1, 2, 3, 4, 3, 4, 3]
    assert flags.tolist() == [False] * 5 + [True, True]


def write(folder, *samples, fingerprint=None):
    with ShardWriter(folder, {"model_fingerprint": fingerprint}) as writer:
        for one in samples:
            writer.write(one)
    return LoopSource(folder=str(folder), gram=2)


def test_a_folder_without_loops_or_of_another_model_is_an_error_that_says_so(tmp_path):
    model = tiny.make_target(tmp_path / "model", tokenizer=False)
    with pytest.raises(ConfigError, match="max_repeated: null"):
        read_loops(write(tmp_path / "none", sample([3, 4, 5])), model, 64, 100)
    with pytest.raises(ConfigError, match="beyond the tokenizer's 4"):
        read_loops(write(tmp_path / "other", sample([3, 4, 5])), model, 64, 4)
    with pytest.raises(ConfigError, match="no whole shard"):
        read_loops(write(tmp_path / "empty"), model, 64, 100)
    with pytest.raises(ConfigError, match="is no folder of samples"):
        read_loops(LoopSource(folder=str(tmp_path / "nowhere")), model, 64, 100)


def test_answers_of_other_weights_are_told(tmp_path):
    model = tiny.make_target(tmp_path / "model", tokenizer=False)
    with pytest.warns(UserWarning, match="another model"):
        read_loops(write(tmp_path / "own", sample([3, 4, 3, 4]), fingerprint="x"), model, 64, 100)


def test_loops_stand_among_the_rows_with_negative_weights(tmp_path):
    write_corpus(tmp_path)
    run_target(settings(tmp_path), device="cpu")
    folder = tmp_path / "own"
    write(folder, sample([8, 9, 8, 9, 8]))
    changes = {
        "init_from": str(tmp_path / "out/last"), "tokenizer": None, "model": None,
        "loops": {"folder": str(folder), "gram": 2, "repeat": 3}, "out": str(tmp_path / "more"),
    }  # fmt: skip
    rows = prepare(settings(tmp_path, **changes)).rows
    batch = rows.row_batch(rows.packed)
    avoided = batch.ids[batch.weights < 0]
    assert avoided.tolist() == [9, 8] * 3, "of 8 9 8 9 8, the last two complete a pair again"
    assert run_target(settings(tmp_path, **changes), device="cpu").steps == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loops": {"folder": "x"}}, "give init_from"),
        ({"loops": {"folder": "x", "kind": "chat"}, "init_from": "y", "tokenizer": None, "model": None},
         "kind of another source"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, **changes)


def test_settings_survive_json(tmp_path):
    made = LoopSource(folder="x")
    assert LoopSource.model_validate(json.loads(made.model_dump_json())) == made

"""Encoded sources that are kept: the same rows again, and nothing stale."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.train.targets.command import prepare, run_target
from tests.train.targets.small import settings, write_corpus


@pytest.fixture
def chosen(tmp_path):
    """A new model's tokenizer in a folder, and settings that take it and keep a cache."""
    write_corpus(tmp_path)
    first = settings(tmp_path)
    run_target(first, device="cpu")
    made = first.model_dump()
    changes = {"tokenizer": str(tmp_path / "out" / "last"), "cache": str(tmp_path / "kept.npz")}
    return type(first).model_validate({**made, **changes})


def rows(ready):
    first = ready.rows.batch(0)
    return [first.ids, first.weights, first.documents]


def test_a_second_start_reads_what_the_first_has_kept(chosen, tmp_path, monkeypatch):
    fresh = prepare(chosen)
    assert (tmp_path / "kept.npz").is_file()
    monkeypatch.setattr("paceline.train.targets.command.passages", lambda _: pytest.fail("read again"))
    again = prepare(chosen)
    assert all(np.array_equal(a, b) for a, b in zip(rows(fresh), rows(again), strict=True))
    assert again.rows.tokens.count() == fresh.rows.tokens.count()
    assert {k: r.packed[0].tolist() for k, r in again.held_out.items()} == {
        k: r.packed[0].tolist() for k, r in fresh.held_out.items()
    }


def test_other_settings_or_changed_sources_are_refused(chosen, tmp_path):
    prepare(chosen)
    with pytest.raises(ConfigError, match="made with other settings"):
        prepare(chosen.model_copy(update={"length": chosen.length - 1}))
    path = tmp_path / "chats.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match="has changed since"):
        prepare(chosen)


def test_sources_that_stayed_behind_are_taken_on_trust_and_said(chosen, tmp_path):
    fresh = prepare(chosen)
    (tmp_path / "chats.jsonl").unlink()
    with pytest.warns(UserWarning, match="not found.*taken as it stands"):
        again = prepare(chosen)
    assert np.array_equal(rows(fresh)[0], rows(again)[0])


def test_another_file_is_no_cache(chosen, tmp_path):
    (tmp_path / "kept.npz").write_bytes(json.dumps({"no": "cache"}).encode())
    with pytest.raises(ConfigError, match="no cache of encoded sources"):
        prepare(chosen)


def test_a_new_tokenizer_has_nothing_to_keep(tmp_path):
    write_corpus(tmp_path)
    raw = settings(tmp_path).model_dump()
    with pytest.raises(ValueError, match="learnt from the sources each time"):
        type(settings(tmp_path)).model_validate({**raw, "cache": "kept.npz"})

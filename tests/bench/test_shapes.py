"""Benchmark models: their sizes, and that what is written loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.bench import rollback
from paceline.bench.shapes import HYBRID_34M, HYBRID_76M, QWEN_27B, HybridShape, write_model
from paceline.models.registry import read_target_spec

SMALL = HybridShape("small", 64, 4, 96, 4, 2, 32, 2, 4, 16, vocab=300)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(HYBRID_76M, 75_842_784), (HYBRID_34M, 34_162_144), (QWEN_27B, 26_895_998_464)],
)
def test_published_sizes(shape: HybridShape, parameters: int) -> None:
    assert shape.num_parameters() == parameters


def test_a_written_model_is_the_shape(tmp_path: Path) -> None:
    folder = write_model(SMALL, tmp_path / "small")
    assert replace(read_target_spec(folder), eos_ids=(), bos_id=None) == rollback.target_spec(SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    assert not list(write_model(SMALL, tmp_path / "small").iterdir())


def test_rollback_row_is_met_and_holds_no_state_per_row() -> None:
    row = rollback.measure("r", "R")
    assert row.met is True and row.value is not None and 0.12 < row.value < 0.15
    assert row.detail["no_term_in_rows_times_state"] is True


def test_growth_sees_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    state = rollback.plan(QWEN_27B, 0)["state_bytes_per_slot"]
    monkeypatch.setattr(rollback, "plan", lambda shape, n: {"bytes_per_slot": state * (1 + n)})
    assert not rollback.growth(QWEN_27B).holds_no_state

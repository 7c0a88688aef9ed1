"""Rows: medians, targets, what is null, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench import goals, rows
from paceline.bench.rows import Row, from_repetitions, interleave

KEYS = {"name", "value", "target", "met", "reps", "spread", "env"}


@pytest.mark.parametrize(
    ("values", "sense", "met"),
    [([1.4, 1.6, 9.0], ">=", True), ([1.4, 1.5, 9.0], "<=", True), ([1.0, 1.4, 9.0], ">=", False)],
)
def test_value_is_the_median_and_decides(values: list[float], sense: rows.Sense, met: bool) -> None:
    row = from_repetitions("x", "X", values, 1.5, sense)
    assert (row.value, row.met, row.reps) == (sorted(values)[1], met, 3)
    assert row.spread == (min(values), max(values))


def test_a_row_without_target_is_not_judged() -> None:
    assert from_repetitions("x", "X", [1.0], None).met is None


def test_interleave_alternates_who_is_first() -> None:
    order: list[str] = []

    def task(name: str, value: float) -> float:
        order.append(name)
        return value

    values = interleave(3, [lambda: task("a", 1.0), lambda: task("b", 2.0)])
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert values == [[1.0] * 3, [2.0] * 3]


def test_written_rows_hold_every_key(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "rows.json"
    measured = from_repetitions("a", "A", [2.0, 2.5], 1.5)
    rows.write(out, [measured, goals.absent("text_identical", "no prompts")], {"cpu": "one"})
    first, second = json.loads(out.read_text())
    assert set(first) >= KEYS and first["met"] is True and first["spread"] == [2.0, 2.5]
    assert second["value"] is None and second["met"] is None and second["reason"] == "no prompts"
    assert second["env"] == {"cpu": "one"}
    assert not list(out.parent.glob("*.part"))


def plain_rows(**verdicts: bool) -> dict[str, Row]:
    names = (*goals.TRANSFORMERS_ROWS, *goals.VLLM_ROWS)
    return {name: Row(name, name, 2.0, 1.5, met=verdicts.get(name, True)) for name in names}


def window_row() -> dict[str, Row]:
    return {"verify8_over_verify1": Row("verify8_over_verify1", "w", 1.1, 1.25, "<=", met=True)}


def test_window_rows_count_beside_a_good_plain_step() -> None:
    found = goals.gated({**plain_rows(), **window_row()})
    assert found["verify8_over_verify1"].met is True


def test_window_rows_do_not_count_beside_a_slow_or_unmeasured_one() -> None:
    slow = goals.gated({**plain_rows(plain_b4_vs_vllm=False), **window_row()})["verify8_over_verify1"]
    assert slow.met is None and slow.value == 1.1 and "plain_b4_vs_vllm" in (slow.reason or "")
    alone = goals.gated(window_row())["verify8_over_verify1"]
    assert alone.met is None and "plain_b1_vs_transformers" in (alone.reason or "")


def test_each_row_can_be_described() -> None:
    for name in goals.GOALS:
        assert goals.describe(goals.absent(name, "because")).endswith("null (because)")


@pytest.mark.parametrize(("reps", "met"), [(4, None), (5, True)])
def test_a_timed_row_needs_five_repetitions(reps: int, met: bool | None) -> None:
    row = goals.enough(from_repetitions("a", "A", [2.0] * reps, 1.5))
    assert (row.value, row.met) == (2.0, met) and (row.reason is None) == bool(met)
    counted = Row("b", "B", 0.1, 0.15, "<=", met=True, reps=1)
    assert goals.enough(counted) is counted, "what is counted, not timed, is the same every time"

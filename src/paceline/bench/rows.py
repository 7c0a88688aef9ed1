"""Rows of a benchmark: one figure each, its target, what it ran on, and how much it moved from run to run."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

Sense = Literal[">=", "<=", "=="]
_COMPARE: dict[Sense, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `value` None: not measured, and `reason` says why; such a row is never met."""

    name: str
    title: str
    value: float | None
    target: float | None
    """None: reported without a goal."""
    sense: Sense = ">="
    met: bool | None = None
    reps: int = 0
    spread: tuple[float, float] | None = None
    """Lowest and highest value of a single repetition."""
    reason: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    """What the value was made of: both sides' absolute figures, settings of this row alone."""

    def to_json(self, env: dict[str, Any]) -> dict[str, Any]:
        """The object written to the output file."""
        return {
            "name": self.name,
            "title": self.title,
            "value": self.value,
            "target": self.target,
            "sense": self.sense,
            "met": self.met,
            "reps": self.reps,
            "spread": list(self.spread) if self.spread else None,
            "reason": self.reason,
            "detail": self.detail,
            "env": env,
        }


def judged(value: float, target: float | None, sense: Sense) -> bool | None:
    """Whether a measured value reaches its target; None without one."""
    return None if target is None else _COMPARE[sense](value, target)


def missing(name: str, title: str, target: float | None, sense: Sense, reason: str) -> Row:
    """A row that was not measured."""
    return Row(name, title, None, target, sense, reason=reason)


def from_repetitions(
    name: str,
    title: str,
    values: Sequence[float],
    target: float | None,
    sense: Sense = ">=",
    detail: dict[str, Any] | None = None,
) -> Row:
    """A row whose value is the median of one value a repetition."""
    value = median(values)
    return Row(
        name,
        title,
        value,
        target,
        sense,
        met=judged(value, target, sense),
        reps=len(values),
        spread=(min(values), max(values)),
        detail=detail or {},
    )


def interleave(reps: int, tasks: Sequence[Callable[[], float]]) -> list[list[float]]:
    """Run every task once a repetition, in turn and in alternating order; values by task, then repetition.

    A machine that slows down or warms up does so for all of them; alternating takes out who comes first.
    """
    values: list[list[float]] = [[] for _ in tasks]
    for repetition in range(reps):
        order = range(len(tasks)) if repetition % 2 == 0 else reversed(range(len(tasks)))
        for index in order:
            values[index].append(tasks[index]())
    return values


def summary(values: Sequence[float], digits: int = 4) -> dict[str, Any]:
    """Median, extremes and every repetition, rounded to `digits` significant digits."""
    short = [rounded(value, digits) for value in values]
    return {"median": rounded(median(values), digits), "min": min(short), "max": max(short), "all": short}


def rounded(value: float, digits: int = 4) -> float:
    """`value` with `digits` significant digits."""
    return float(f"{value:.{digits}g}")


def write(path: Path, rows: Sequence[Row], env: dict[str, Any]) -> None:
    """Write all rows as one JSON list, by replacement: a reader never sees half a file."""
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([row.to_json(env) for row in rows], indent=1, allow_nan=False)
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)

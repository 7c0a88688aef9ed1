"""What a run prints at its end."""

from __future__ import annotations

from paceline.bench import goals, report
from paceline.bench.rows import from_repetitions


def test_the_split_of_a_step_and_the_acceptance_stand_below_their_row() -> None:
    split = {
        "plain": {"steps": 9, "ms_per_step": {"verify": 4.0, "draft": 0.0, "sample": 0.25, "host": 0.5}},
        "dflash": {"steps": 3, "ms_per_step": {"verify": 5.0, "draft": 1.5, "sample": 0.25, "host": 0.5}},
    }
    detail = {"acceptance_length": 2.5, "split": split}
    rows = [
        from_repetitions("dflash_vs_plain_b1", "speed-up", [0.7, 0.8, 0.9], 0.65, ">=", detail),
        goals.absent("text_identical", "no prompts"),
    ]
    lines = report.terminal(rows).splitlines()
    assert lines[0].startswith("dflash_vs_plain_b1: 0.8, target >= 0.65: met")
    assert lines[1:4] == [
        "  at acceptance length 2.5; milliseconds of a step:",
        "  plain: verify 4, draft 0, sample 0.25, host 0.5 (over 9 steps)",
        "  dflash: verify 5, draft 1.5, sample 0.25, host 0.5 (over 3 steps)",
    ]
    assert lines[4] == "text_identical: null (no prompts)" and len(lines) == 5

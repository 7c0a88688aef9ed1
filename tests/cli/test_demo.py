"""`paceline demo`: four ways to decode, streamed, and the table that compares them."""

from __future__ import annotations

import pytest

from paceline.bench.prompts import DEMO_PROMPTS
from tests.cli import fake

CATEGORIES = ["coding", "extraction", "math", "natural", "prose", "reasoning"]


@pytest.fixture(autouse=True)
def long_prompts(monkeypatch):
    monkeypatch.setattr(fake, "LIMIT", 1000)


def test_one_prompt_of_each_category():
    assert [prompt.category for prompt in DEMO_PROMPTS] == CATEGORIES


def test_every_proposer_runs_every_prompt_after_a_warm_up(paceline, script):
    result = paceline("demo", "--max-tokens", "20")
    assert result.code == 0
    assert [o["speculative_config"] for o in script.opened] == [
        None, {"method": "ngram"}, {"method": "mtp"},
        {"method": "dflash", "model": "demo", "num_speculative_tokens": 4},
    ]  # fmt: skip
    assert all(o["model"] == "demo" for o in script.opened) and script.closed == 4
    warm, timed = script.requests[:4], script.requests[4:]
    assert [r["params"].max_tokens for r in warm] == [16] * 4
    assert [r["ids"] for r in timed] == [[c] for c in CATEGORIES for _ in range(4)]
    assert {r["params"].max_tokens for r in timed} == {20}
    for part in (*CATEGORIES, "[plain]", "[dflash]", "tokens/s", "speed-up", "2.00×", "3.00", "67%"):
        assert part in result.out
    assert result.out.splitlines()[-1] == "text identical: yes"
    assert DEMO_PROMPTS[4].text[:40] in result.out


def test_own_prompt(paceline):
    result = paceline("demo", "--prompt", "hello")
    assert result.code == 0 and "olleh" in result.out and "coding" not in result.out


def test_json_is_one_object_with_rows_settings_and_environment(paceline):
    result = paceline("demo", "--json")
    (report,) = result.rows
    assert [row["name"] for row in report["table"]] == ["plain", "ngram", "mtp", "dflash"]
    plain = dict(report["table"][0])
    assert plain.pop("tokens_per_s") > 0
    assert plain == {
        "name": "plain", "speedup": 1.0, "acceptance_length": None, "draft_acceptance_rate": None,
        "text_identical": True,
    }  # fmt: skip
    assert report["table"][3]["speedup"] == pytest.approx(2.0)
    assert report["settings"] == {
        "determinism": {"on": True, "products": "fake", "cost": 0.5},
        "temperature": 0.0, "seed": 0, "max_tokens": 96,
    }  # fmt: skip
    assert [p["category"] for p in report["prompts"]] == CATEGORIES
    assert set(report["prompts"][0]["outputs"]) == {"plain", "ngram", "mtp", "dflash"}
    assert {"cpu", "cores", "versions", "threads"} <= set(report["env"])


def test_json_rows_are_those_of_a_benchmark(paceline):
    (report,) = paceline("demo", "--json").rows
    assert all(
        {"name", "value", "target", "met", "reps", "spread", "env"} <= set(row) for row in report["rows"]
    )
    rows = {row["name"]: row for row in report["rows"]}
    assert len(rows) == len(report["rows"]) == 4 * 5
    assert rows["dflash_speedup"]["value"] == report["table"][3]["speedup"]
    assert (rows["dflash_speedup"]["target"], rows["dflash_speedup"]["met"]) == (None, None)
    identical = rows["mtp_text_identical"]
    assert (identical["value"], identical["target"], identical["met"]) == (1.0, 1.0, True)
    nothing = rows["plain_acceptance_length"]
    assert nothing["value"] is None and nothing["met"] is None and nothing["reason"]


def test_a_changed_text_says_no_and_is_1(paceline, script):
    script.wrong_at = 2
    result = paceline("demo", "--json")
    assert result.code == 1
    (report,) = result.rows
    assert [row["text_identical"] for row in report["table"]] == [True, False, False, False]
    verdicts = [row["met"] for row in report["rows"] if row["name"].endswith("_text_identical")]
    assert verdicts == [True, False, False, False]


def test_an_empty_prompt_is_refused(paceline):
    assert paceline("demo", "--prompt", "").code == 2

"""Bars judge what was measured; the card's figures are the report's."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from paceline.errors import ConfigError
from paceline.train.evaluate.bars import BARS, judge
from paceline.train.evaluate.report import BEGIN, END, markdown, show, training_runs, write_card

CATEGORIES = ("coding", "math", "reasoning", "extraction", "prose", "natural")


def served(length, per_pass=None):
    row = {"acceptance_length": length, "tokens_per_pass": per_pass or length, "by_position": [0.5, 0.25]}
    return {"0.0": {**row, "categories": {name: dict(row) for name in CATEGORIES}}}


@pytest.fixture
def sections():
    return {
        "answers": {"stops": 0.96, "median_tokens": 40, "repeated": 0.1, "categories": {
            "prose": {"stops": 1.0, "median_tokens": 50, "repeated": 0.125}}},
        "arithmetic": {"right": 0.7},
        "tools": {"name": 0.85, "arguments": 0.65},
        "extraction": {"keys": 0.9, "values": 0.8},
        "acceptance": {"dflash": served(3.25), "mtp": served(2.5), "ngram": served(3.5, 1.5)},
        "texts": {"novel": {"tokens": 1000, "nat_per_token": 3.0, "perplexity": 20.1, "bits_per_byte": 1.2}},
    }  # fmt: skip


def met(sections):
    return {verdict.bar.name: verdict.met for verdict in judge(sections)}


def test_everything_can_be_met(sections):
    assert met(sections) == {bar.name: True for bar in BARS}


@pytest.mark.parametrize("section, figure, value, bar", [
    ("answers", "stops", 0.94, "stops"), ("answers", "median_tokens", 24, "length"),
    ("answers", "repeated", 0.16, "repetition"), ("arithmetic", "right", 0.59, "arithmetic"),
    ("tools", "name", 0.79, "tool_name"), ("tools", "arguments", 0.59, "tool_arguments"),
    ("extraction", "keys", 0.79, "extraction_keys"), ("extraction", "values", 0.69, "extraction_values"),
])  # fmt: skip
def test_every_bar_can_be_missed(sections, section, figure, value, bar):
    sections[section][figure] = value
    assert met(sections)[bar] is False


def test_acceptance_does_not_count_while_answers_loop(sections):
    sections["answers"]["repeated"] = 0.3
    verdicts = {verdict.bar.name: verdict for verdict in judge(sections)}
    assert verdicts["dflash_four"].met is False and verdicts["dflash_four"].value == 3.25
    assert verdicts["dflash_four"].reason == "does not count: repetition"
    assert verdicts["arithmetic"].met


def test_the_lead_over_ngram_is_in_tokens_of_a_pass_and_outside_extraction(sections):
    dflash = sections["acceptance"]["dflash"]["0.0"]["categories"]
    dflash["extraction"]["tokens_per_pass"] = 99.0
    verdict = {verdict.bar.name: verdict for verdict in judge(sections)}["dflash_over_ngram"]
    assert verdict.value == pytest.approx(3.25 - 1.5)


def test_what_was_not_measured_is_neither_met_nor_missed(sections):
    del sections["acceptance"]["dflash"], sections["tools"]
    verdicts = {verdict.bar.name: verdict for verdict in judge(sections)}
    for name in ("dflash_four", "dflash_prose", "dflash_over_ngram", "tool_name"):
        assert verdicts[name].met is None and verdicts[name].reason == "not measured"
    assert verdicts["mtp_four"].met
    del sections["acceptance"]["mtp"]["0.0"]["categories"]["coding"]
    assert met(sections)["mtp_four"] is None, "a mean of three is not the mean of four"


@pytest.fixture
def report(sections, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"device": "A GPU", "steps": 7, "config": {"x": 1}}))
    (run / "metrics.jsonl").write_text('{"step": 6, "loss": 2.5}\n{"step": 7, "loss": 2.25}\n{"score": 1}\n')
    return {
        "model": "demo", "seed": 4, "seconds": 61.5, "sections": sections,
        "bars": [verdict.to_json() for verdict in judge(sections)],
        "environment": {"date": "today", "device": "a CPU", "cores": 2, "threads": 1,
                        "versions": {"torch": "9.9"}},
        "runs": training_runs({"target": str(run)}),
    }  # fmt: skip


def test_the_card_holds_the_reports_figures(report, tmp_path):
    card = tmp_path / "card.md"
    card.write_text(f"# Name\n\nbefore\n{BEGIN}\nold\n{END}\nbehind\n")
    for _ in range(2):
        write_card(card, report)
    text = card.read_text()
    assert text.startswith("# Name\n\nbefore\n") and text.endswith("\nbehind\n") and "old" not in text
    assert text == f"# Name\n\nbefore\n{BEGIN}\n{markdown(report)}\n{END}\nbehind\n"
    for figure in ("0.96", "| 3.25 |", "| 1.5 |", "12.5%", "0.50 0.25", "20.1", "A GPU", "2.25", "torch 9.9"):
        assert figure in text


def test_a_card_without_marks_is_refused(report, tmp_path):
    card = tmp_path / "card.md"
    card.write_text("# Name\n")
    with pytest.raises(ConfigError, match="lacks the lines"):
        write_card(card, report)
    with pytest.raises(ConfigError, match="does not exist"):
        write_card(tmp_path / "none.md", report)


def test_the_terminal_shows_every_bar(report):
    console = Console(file=io.StringIO(), width=160)
    show(report, console)
    text = console.file.getvalue()
    assert all(bar.text in text for bar in BARS)
    assert "mtp at T = 0.0" in text and "math 2.50 (2.50)" in text


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"runs\.mine"):
        training_runs({"mine": str(tmp_path)})

"""`paceline train eval` on a tiny random target: one report, repeatable, by one seed."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import yaml

from paceline.errors import CapacityError, ConfigError, ModelError
from paceline.train.evaluate.bars import BARS
from paceline.train.evaluate.command import Evaluation, bench_prompts, run
from paceline.train.settings.base import load_yaml
from paceline.train.settings.evaluate import EvaluateSettings
from tests.tiny import make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def config(target, tmp_path):
    """Write a settings file and return its path; keywords replace keys."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"id": str(i), "category": c, "prompt": f"{c} {i}"} for i, c in enumerate(("math", "prose", "math"))
    ]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    text = tmp_path / "novel.txt"
    text.write_text("It was a dark night. " * 20)
    card = tmp_path / "card.md"
    card.write_text("<!-- figures -->\n<!-- /figures -->\n")
    few = {"count": 2, "max_tokens": 3}
    values = {
        "model": str(target), "out": str(tmp_path / "out" / "report.json"), "card": str(card),
        "answers": {"prompts": str(prompts), "max_tokens": 6}, "arithmetic": few, "extraction": few,
        "word_problems": few, "puzzles": few, "tools": {"count": 0},
        "acceptance": {"proposers": {"mtp": {"method": "mtp"}, "ngram": {"method": "ngram"}},
                       "max_tokens": 4, "limit": 2, "temperatures": [0]},
        "texts": {"novel": str(text)}, "text_tokens": 64,
    }  # fmt: skip

    def write(**changes):
        path = tmp_path / "eval.yaml"
        path.write_text(yaml.safe_dump({**values, **changes}))
        return path

    return write


def stable(report):
    return {key: value for key, value in report.items() if key not in ("seconds", "environment")}


@pytest.mark.filterwarnings("ignore")
def test_one_report(config, tmp_path, capsys):
    out = tmp_path / "out" / "report.json"
    path = config()
    assert run(path, device="cpu", seed=3) == 0
    report = json.loads(out.read_text())
    assert [bar["name"] for bar in report["bars"]] == [bar.name for bar in BARS]
    assert report["seed"] == 3 and report["sections"]["arithmetic"]["seed"] == 3
    assert set(report["sections"]) == {
        "answers", "arithmetic", "extraction", "word_problems", "puzzles", "texts", "acceptance",
    }  # fmt: skip
    assert report["sections"]["answers"]["count"] == 3
    assert set(report["sections"]["acceptance"]["mtp"]["0.0"]["categories"]) == {"math", "prose"}
    assert report["sections"]["texts"]["novel"]["tokens"] == 63
    assert report["sections"]["texts"]["novel"]["perplexity"] > 1
    assert "| what | measured | bar | met |" in (tmp_path / "card.md").read_text()
    assert BARS[0].text.split()[0] in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_one_seed_one_report(config, capsys):
    none = {"count": 0}
    path = config(acceptance={}, texts={}, extraction=none, word_problems=none, puzzles=none)
    found = []
    for seed in (3, 3, 4):
        assert run(path, device="cpu", seed=seed, as_json=True) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert stable(found[0]) == stable(found[1])
    samples = [report["sections"]["arithmetic"]["samples"] for report in found]
    assert samples[1] != samples[2]


@pytest.mark.filterwarnings("ignore")
def test_a_plan_writes_nothing(config, tmp_path, capsys):
    assert run(config(), plan=True, as_json=True) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["answers"] == 3 + 4 * 2 + 2 * 2
    assert plan["tokens_at_most"] == 3 * 6 + 4 * 2 * 3 + 2 * 2 * 4
    memory = plan["engine"]["memory"]
    assert set(memory) == {"answers", "acceptance.mtp", "acceptance.ngram"}
    assert memory["acceptance.mtp"]["mtp_head"] > 0 == memory["answers"]["mtp_head"]
    assert plan["engine"]["largest"] == max(one["total"] for one in memory.values())
    estimate = plan["estimate"]
    assert estimate["trial_answers"] == 3 and "by a trial of bench prompts" in estimate["text"]
    tokens = 3 * (mean := estimate["mean_answer_tokens"]) + 4 * 2 * min(mean, 3) + 2 * 2 * min(mean, 4)
    assert estimate["seconds"] == pytest.approx(tokens / estimate["tokens_per_second"], abs=0.06)
    assert run(config(), plan=True) == 0
    assert "answers.max_tokens" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("changes, message", [
    ({"arithmetics": {}}, "did you mean arithmetic"),
    ({"acceptance": {"proposers": {"d": {"method": "dflash"}}}}, "needs the key 'model'"),
    ({"card": "/nowhere/card.md"}, "does not exist"),
    ({"runs": {"target": "/nowhere"}}, "runs.target"),
    ({"texts": {"novel": "/nowhere.txt"}}, "texts.novel"),
    ({"card": json.__file__}, "lacks the lines <!-- figures -->"),
    ({"out": "/"}, "out: / is a folder"),
    ({"out": f"{json.__file__}/x.json"}, "__init__.py is a file; name a folder"),
    ({"acceptance": {"proposers": {"d": {"method": "dflash", "model": "/nowhere"}}}}, "does not exist"),
])  # fmt: skip
@pytest.mark.parametrize("plan", [True, False])
def test_mistakes_are_named_before_anything_is_measured(config, changes, message, plan, monkeypatch):
    monkeypatch.setattr(Evaluation, "_answered", lambda *_: pytest.fail("it began"))
    with pytest.raises((ConfigError, ModelError), match=message):
        run(config(**changes), plan=plan, device="cpu")


@pytest.mark.parametrize("seed", [2**64, -1])
def test_a_seed_from_the_command_line_is_bounded_as_the_files(config, seed, monkeypatch):
    monkeypatch.setattr(Evaluation, "run", lambda _: pytest.fail("it began"))
    with pytest.raises(ConfigError, match="--seed: Input should be"):
        run(config(), device="cpu", seed=seed)


def test_a_full_disk_names_the_file_and_keeps_the_report_before(config, tmp_path, monkeypatch):
    out = tmp_path / "report.json"
    out.write_text("before")
    usual = Path.write_text

    def full(self, text, **options):
        if self.name.startswith(out.name):
            usual(self, text[:5], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        return usual(self, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    words = r"report\.json cannot be written \(No space left on device\): make room"
    with pytest.raises(CapacityError, match=words):
        run(config(out=str(out)), device="cpu")
    assert out.read_text() == "before" and not list(tmp_path.glob("*.unfinished"))


def test_the_bench_prompts_come_with_the_package(config):
    path = config(answers={})
    found = bench_prompts(load_yaml(path, EvaluateSettings))
    assert len(found) == 72 and {prompt.category for prompt in found} >= {"coding", "prose", "extraction"}

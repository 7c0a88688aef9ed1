"""The command as a whole, on models that are tiny: every row that needs no other interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.bench import cpu, dflash, identity, machine, plain, suite, window
from paceline.bench.goals import GOALS
from paceline.bench.shapes import HybridShape, write_model
from tests import tiny


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Short answers, little memory touched, a tiny model in place of the 75.8 M one."""
    shape = HybridShape("small", 64, 4, 96, 4, 2, 32, 2, 4, 16, vocab=300)
    monkeypatch.setattr(suite, "HYBRID_76M", shape)
    monkeypatch.setattr(suite, "cached_model", lambda wanted: write_model(wanted, tmp_path / "small"))
    monkeypatch.setattr(suite, "SETTLE_S", 0.0)
    monkeypatch.setattr(machine, "memory_read_rate", lambda: 1.0)
    monkeypatch.setattr(plain, "SHORT", 2)
    monkeypatch.setattr(plain, "LONG", 24)
    monkeypatch.setattr(identity, "TOKENS", 12)
    monkeypatch.setattr(identity, "SAMPLINGS", ((0.0, None), (0.8, 1)))
    monkeypatch.setattr(dflash, "TOKENS", 10)
    monkeypatch.setattr(window, "TOKENS", 40)


def run(out: Path, *arguments: str) -> dict[str, Any]:
    """Rows by name."""
    assert cpu.main(["--out", str(out), "--shared-machine", *arguments]) == 0
    return {row["name"]: row for row in json.loads(out.read_text())}


def test_one_row_alone(small: None, tmp_path: Path) -> None:
    rows = run(tmp_path / "out.json", "--only", "rollback")
    assert list(rows) == ["rollback_share_27b_n10"]
    row = rows["rollback_share_27b_n10"]
    assert row["met"] is True and row["env"]["kernels"] and row["env"]["load_average"]


def test_what_is_missing_is_null_with_its_reason(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    absent = ["--model", str(tmp_path / "nowhere"), "--only", "vllm", "--only", "transformers"]
    rows = run(tmp_path / "out.json", *absent, "--only", "dflash", "--only", "identical")
    assert len(rows) == 7 and all(row["value"] is None and row["met"] is None for row in rows.values())
    assert "VLLM_PYTHON" in rows["plain_b4_vs_vllm"]["reason"]
    assert "nowhere" in rows["plain_b16_vs_transformers"]["reason"]
    assert "nowhere" in rows["text_identical"]["reason"]


@pytest.mark.parametrize("arguments", [["--reps", "0"], []])
def test_bad_usage_exits_2(arguments: list[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "x")] if arguments else []
    with pytest.raises(SystemExit) as exit_:
        cpu.main([*out, *arguments])
    assert exit_.value.code == 2


def test_a_bad_prompts_file_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "x"), "--shared-machine"]
    assert cpu.main([*out, "--prompts", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_trained_models_rows(small: None, tmp_path: Path) -> None:
    target = tiny.make_target(tmp_path / "target", "wide", dtype=torch.bfloat16)
    drafter = tiny.make_drafter(tmp_path / "drafter", tiny.drafter_for("wide"), dtype=torch.bfloat16)
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": str(i), "category": "abc"[i], "prompt": "one two one two one"} for i in range(3)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    files = ["--model", str(target), "--drafter", str(drafter), "--prompts", str(prompts)]
    names = ["transformers", "verify8", "dflash", "identical"]
    only = [part for name in names for part in ("--only", name)]
    rows = run(tmp_path / "out.json", *files, *only, "--reps", "2", "--draft-tokens", "4")
    assert set(rows) == set(GOALS) - {name for name in GOALS if "vllm" in name or "rollback" in name}
    timed = [row for name, row in rows.items() if name != "text_identical"]
    assert all(row["reps"] == 2 or "not quiet" in row["reason"] for row in timed)
    assert rows["verify8_over_verify1"]["met"] is None, "vLLM's rows were not measured"
    split = rows["dflash_vs_plain_b1"]["detail"]["split"]
    assert split["plain"]["ms_per_step"]["draft"] == 0 < split["dflash"]["ms_per_step"]["draft"]
    assert rows["dflash_vs_plain_b1"]["detail"]["num_speculative_tokens"] == 4
    assert rows["text_identical"]["value"] == 1.0

"""The shipped demo: unchanged since it was made, complete, measured, loadable by others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from paceline.cli.main import main
from paceline.train.evaluate.report import BEGIN, END, markdown
from paceline.train.modules.load import load_train_target
from paceline.train.synth.render import chat_template

DEMO = Path(__file__).parents[2] / "demo"
PARTS = ("target", "drafter", "drafter-sliding")
TEXT = "def open(path):\n    return Path(path)  # naïve — 12 345\n\nIt is a truth universally acknowledged\n"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_are_those_of_the_manifest() -> None:
    recorded = json.loads((DEMO / "manifest.json").read_text())
    shipped = {p.relative_to(DEMO).as_posix() for d in PARTS for p in (DEMO / d).iterdir()}
    assert set(recorded["files"]) == shipped
    assert {name: sha256(DEMO / name) for name in shipped} == recorded["files"]
    assert all(s[k] for s in recorded["sources"] for k in ("file", "origin", "licence", "sha256", "obtain"))
    assert not any("bench" in s["file"] for s in recorded["sources"])


def test_it_is_small() -> None:
    sizes = [p.stat().st_size for p in DEMO.rglob("*") if p.is_file()]
    assert sum(sizes) <= 80e6 and max(sizes) <= 45e6


RUNS = ("target", "target4", "target5", "target6", "target7", "target8", "mtp", "drafter", "drafter-sliding",
        "drafter-last", "drafter-sliding-last")  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_a_log_shows_that_something_was_learnt(run: str) -> None:
    folder = DEMO / "logs" / run
    record = json.loads((folder / "run.json").read_text())
    assert record["device"] and record["versions"]["torch"] and record["finished"] > record["started"]
    losses = [row["loss"] for row in map(json.loads, (folder / "metrics.jsonl").open()) if "loss" in row]
    assert losses[-1] < losses[0]


def test_the_card_tells_what_was_measured() -> None:
    report = json.loads((DEMO / "report.json").read_text(encoding="utf-8"))
    card = (DEMO / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert card.partition(BEGIN)[2].partition(END)[0].strip() == markdown(report).strip()
    assert len(report["bars"]) >= 12 and all(bar["value"] is not None for bar in report["bars"])
    answers = ("stops", "length", "repetition", "arithmetic", "tool_name", "tool_arguments")
    met = {bar["name"]: bar["met"] for bar in report["bars"]}
    assert all(met[name] for name in (*answers, "extraction_keys", "extraction_values"))


def test_the_chat_format_is_the_one_that_it_learnt() -> None:
    config = json.loads((DEMO / "target/tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == chat_template()
    tokenizer = Tokenizer.from_file(str(DEMO / "target/tokenizer.json"))
    for mark in ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"):
        assert len(tokenizer.encode(mark).ids) == 1


def test_transformers_loads_the_plain_form_and_its_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    plain = tmp_path / "plain"
    assert main(("dequantize", "demo", str(plain), "--dtype", "float32")) == 0
    tok = transformers.AutoTokenizer.from_pretrained(plain)
    own = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    ids = own.encode(TEXT + "<|im_end|>").ids
    assert tok(TEXT + "<|im_end|>")["input_ids"] == ids
    assert own.decode(ids, skip_special_tokens=False) == TEXT + "<|im_end|>"
    assert tok.eos_token == "<|im_end|>" and len(tok) == 8192
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    mine = load_train_target(DEMO / "target")
    batch = torch.tensor([own.encode(TEXT).ids])
    with torch.no_grad():
        want = model(batch).logits
    assert (mine.logits(mine(batch)[0]) - want).abs().max() < 2e-4 * max(1.0, float(want.std()))


def test_the_head_stands_beside_the_target() -> None:
    with safe_open(DEMO / "target/mtp.safetensors", "pt") as file:
        assert len(list(file.keys())) == 15

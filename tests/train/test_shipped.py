"""The shipped demo files: unchanged since they were exported, complete, loadable by others.

They were made by this project's first trainer, which `demo/MODEL_CARD.md` names by its commit.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from paceline.train.modules.load import load_train_target

DEMO = Path(__file__).parents[2] / "demo"
TEXT = "def open(path):\n    return Path(path)  # naïve — 12 345\n\nIt is a truth universally acknowledged\n"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_are_those_of_the_manifest() -> None:
    recorded = json.loads((DEMO / "manifest.json").read_text())
    shipped = {p.relative_to(DEMO).as_posix() for d in ("target", "drafter") for p in (DEMO / d).iterdir()}
    assert set(recorded["files"]) == shipped
    assert {name: sha256(DEMO / name) for name in shipped} == recorded["files"]
    assert all(s[k] for s in recorded["sources"] for k in ("file", "origin", "licence", "sha256", "obtain"))
    assert not any("prompts" in s["file"] for s in recorded["sources"])
    assert sum(p.stat().st_size for p in DEMO.rglob("*") if p.is_file()) <= 40e6


@pytest.mark.parametrize(
    ("stage", "file"),
    [
        ("tokenizer", "target/tokenizer.json"),
        ("mtp", "target/model.safetensors"),
        ("drafter", "drafter/model.safetensors"),
    ],
)
def test_a_log_agrees_with_the_files(stage: str, file: str) -> None:
    log = json.loads((DEMO / "logs" / f"{stage}.json").read_text())
    assert log["files"][file] == sha256(DEMO / file)
    assert log["device"] and log["torch"] and log["corpus"]


@pytest.mark.parametrize("stage", ["target", "mtp", "drafter"])
def test_a_log_shows_that_something_was_learnt(stage: str) -> None:
    losses = json.loads((DEMO / "logs" / f"{stage}.json").read_text())["losses"]
    assert losses[-1][1] < losses[0][1]


def test_transformers_loads_the_target_and_its_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    tok = transformers.AutoTokenizer.from_pretrained(DEMO / "target")
    own = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    text = TEXT + "<|endoftext|>"
    ids = own.encode(text).ids
    assert tok(text)["input_ids"] == ids and own.decode(ids, skip_special_tokens=False) == text
    assert tok.eos_token_id == 0 and len(tok) == 4095
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    mine = load_train_target(DEMO / "target")
    batch = torch.tensor([own.encode(TEXT).ids])
    with torch.no_grad():
        want = model(batch).logits
    assert (mine.logits(mine(batch)[0]) - want).abs().max() < 2e-4 * max(1.0, float(want.std()))
    names = load_file(str(DEMO / "target" / "model.safetensors"))
    assert sum(name.startswith("mtp.") for name in names) == 15

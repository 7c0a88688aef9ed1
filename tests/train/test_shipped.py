"""The shipped demo files: unchanged since they were exported, complete, loadable by others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from paceline.train import dflash, export, manifest, mtp
from paceline.train.config import DemoConfig, load_config
from paceline.train.target import Target

DEMO = Path(__file__).parents[2] / "demo"
TEXT = "def open(path):\n    return Path(path)  # naïve — 12 345\n\nIt is a truth universally acknowledged\n"


def test_files_are_those_of_the_manifest() -> None:
    recorded = json.loads((DEMO / "manifest.json").read_text())
    shipped = {p.relative_to(DEMO).as_posix() for d in ("target", "drafter") for p in (DEMO / d).iterdir()}
    assert set(recorded["files"]) == shipped
    assert manifest.check(DEMO, recorded["files"]) == []
    assert all(s[k] for s in recorded["sources"] for k in ("file", "origin", "licence", "sha256", "obtain"))
    assert not any("prompts" in s["file"] for s in recorded["sources"])
    assert sum(p.stat().st_size for p in DEMO.rglob("*") if p.is_file()) <= 40e6


SECTIONS = {
    "tokenizer": ("sources", "tokenizer", "split"),
    "target": ("sources", "split", "target"),
    "data": ("target", "data"),
    "drafter": ("target", "drafter"),
    "mtp": ("target", "mtp"),
}
FINAL = {
    "tokenizer": "target/tokenizer.json",
    "mtp": "target/model.safetensors",
    "drafter": "drafter/model.safetensors",
}


@pytest.mark.parametrize("stage", SECTIONS)
def test_a_log_agrees_with_files_and_configuration(stage: str) -> None:
    config = load_config(DEMO / "configs" / "demo.yaml")
    log = json.loads((DEMO / "logs" / f"{stage}.json").read_text())
    resolved = DemoConfig.model_validate_json(json.dumps(log["config"]))
    for section in SECTIONS[stage]:
        assert getattr(resolved, section) == getattr(config, section), section
    assert log["device"] and log["torch"] and log["corpus"]
    if stage in FINAL:
        assert log["files"][FINAL[stage]] == export.sha256(DEMO / FINAL[stage])
    if "losses" in log:
        assert log["losses"][-1][1] < log["losses"][0][1]


def test_weights_fit_the_configuration() -> None:
    c = load_config(DEMO / "configs" / "demo.yaml")
    target = DEMO / "target" / "model.safetensors"
    export.load_weights(Target(c.target), target, "model.")
    export.load_weights(mtp.MTPHead(c.target), target, "mtp.")
    export.load_weights(dflash.Drafter(c.drafter, c.target), DEMO / "drafter" / "model.safetensors", "")
    tensors = load_file(str(target))
    assert sum(n.startswith("mtp.") for n in tensors) == 15 and all(
        t.isfinite().all() for t in tensors.values()
    )
    assert json.loads((DEMO / "target" / "config.json").read_text()) == export.target_json(c.target)
    assert json.loads((DEMO / "drafter" / "config.json").read_text()) == export.drafter_json(
        c.drafter, c.target
    )


def test_transformers_loads_the_target_and_its_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    tok = transformers.AutoTokenizer.from_pretrained(DEMO / "target")
    own = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    text = TEXT + "<|endoftext|>"
    ids = own.encode(text).ids
    assert tok(text)["input_ids"] == ids and own.decode(ids, skip_special_tokens=False) == text
    assert tok.eos_token_id == 0 and len(tok) == 4095
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    c = load_config(DEMO / "configs" / "demo.yaml").target
    mine = Target(c).requires_grad_(False)
    export.load_weights(mine, DEMO / "target" / "model.safetensors", "model.")
    batch = torch.tensor([own.encode(TEXT).ids])
    with torch.no_grad():
        want = model(batch).logits
    assert (mine.logits(mine(batch)[0]) - want).abs().max() < 2e-4 * max(1.0, float(want.std()))

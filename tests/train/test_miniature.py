"""All stages through the command itself, on the interpreter's own library sources as corpus."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.errors import ConfigError
from paceline.train import manifest
from paceline.train.config import load_config
from paceline.train.demo import main

CONFIG = Path(__file__).parents[2] / "demo" / "configs" / "miniature.yaml"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for module in (argparse, json, shutil, textwrap):
        assert module.__file__ is not None
        shutil.copy(module.__file__, folder / f"{module.__name__}.py")
    return folder


@pytest.mark.slow
def test_every_stage_trains_and_exports(corpus: Path, tmp_path: Path) -> None:
    args = ["--corpus", str(corpus), "--out", str(tmp_path), "--config", str(CONFIG), "--device", "cpu"]
    assert main(["all", *args]) == 0
    for stage in ("target", "mtp", "drafter"):
        log = json.loads((tmp_path / "logs" / f"{stage}.json").read_text())
        losses = [loss for _, loss in log["losses"]]
        assert min(losses[-3:]) < losses[0] - 0.5, (stage, losses)
        assert log["steps"] > 0 and log["torch"] == torch.__version__ and log["config"]["name"] == "miniature"
    tensors = load_file(str(tmp_path / "target" / "model.safetensors"))
    assert sum(name.startswith("mtp.") for name in tensors) == 15
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert len(load_file(str(tmp_path / "drafter" / "model.safetensors"))) == 3 + 11 * 2
    recorded = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest.check(tmp_path, recorded["files"]) == []
    assert {s["file"] for s in recorded["sources"]} == {p.name for p in corpus.iterdir()}
    with np.load(tmp_path / "work" / "continuations.npz") as made:
        assert made["ids"].max() < 511  # the drafter's mask row is never produced
    (tmp_path / "target" / "config.json").write_text("{}")
    assert manifest.check(tmp_path, recorded["files"]) == ["target/config.json"]


def test_a_stage_says_which_one_must_run_first(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--corpus", str(corpus), "--out", str(tmp_path), "--config", str(CONFIG), "--device", "cpu"]
    assert main(["target", *args]) == 2
    assert "run the stage 'tokenizer' first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("batch_size: 4,", "batch_sise: 4,", "target.training.batch_s"),
        ("mask_token_id: 511", "mask_token_id: 510", "mask_token_id"),
        ("target_layer_ids: [0, 2]", "target_layer_ids: [0, 4]", "target_layer_ids"),
        ("vocab_size: 512", 'vocab_size: "512"', "target.vocab_size"),
    ],
)
def test_a_wrong_configuration_names_its_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    text = CONFIG.read_text()
    assert old in text
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=key):
        load_config(path)

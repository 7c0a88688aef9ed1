"""Every code, block scale, global scale and input scale against nvidia-modelopt on tiny random models.

It needs modelopt >= 0.45 in this Python, or in the one that PACELINE_MODELOPT_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.quantize.export import quantize
from paceline.quantize.plan import QuantizeOptions
from paceline.quantize.samples import Calibration, load_samples
from tests.tiny import TARGETS, make_target, target_config, write_json, write_tokenizer

PYTHON = os.environ.get("PACELINE_MODELOPT_PYTHON", sys.executable)
ORACLE = Path(__file__).with_name("modelopt_oracle.py")
RECIPES = {"xs": None, "regular": "*linear_attn*"}
"""Our recipe, and what to switch off in modelopt's default for the same."""


def have_modelopt() -> bool:
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('modelopt') is None)"
    return subprocess.run([PYTHON, "-c", program], check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not have_modelopt(), reason=f"{PYTHON} has no nvidia-modelopt"),
]


def make_vision_model(folder: Path) -> Path:
    """A wrapper model with a whole, tiny vision tower, as transformers saves it."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = target_config(TARGETS["three"], torch.bfloat16)
    text["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 16, "patch_size": 4,
    }  # fmt: skip
    config = Qwen3_5Config(
        text_config=text, vision_config=vision, architectures=["Qwen3_5ForConditionalGeneration"]
    )
    model = Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    heavy = {n: t * (1 + 2 * torch.rand_like(t)) for n, t in tensors.items()}
    save_file(heavy, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, text["vocab_size"])
    return folder


@pytest.fixture(scope="module", params=["text", "vision"])
def model(request, tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("modelopt") / request.param
    if request.param == "vision":
        return make_vision_model(folder)
    return make_target(folder, "wide", dtype=torch.bfloat16)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_byte_is_modelopts(model, recipe, tmp_path):
    calibration = Calibration(samples=4, seq_len=48)
    write_json(tmp_path / "ids.json", load_samples(model, calibration, 1024))
    command = [PYTHON, ORACLE, model, tmp_path / "theirs", tmp_path / "ids.json"]
    command += [RECIPES[recipe]] if RECIPES[recipe] else []
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    quantize(model, tmp_path / "ours", QuantizeOptions(recipe=recipe), calibration)
    theirs, ours = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    # modelopt's loader drops the multi-token head; 0.46 and later nest the names of a text-only model.
    nested = any(name.startswith("model.language_model.") for name in ours)
    theirs = {
        name if nested else name.replace("model.language_model.", "model."): t for name, t in theirs.items()
    }
    ours = {name: tensor for name, tensor in ours.items() if not name.startswith("mtp.")}
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        other = theirs[name]
        assert tensor.dtype == other.dtype and tensor.shape == other.shape, name
        if name.endswith(".input_scale"):
            torch.testing.assert_close(tensor, other, rtol=1e-3, atol=0, msg=name)
        else:
            assert torch.equal(tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)), (
                name
            )
    check_json(tmp_path / "ours", tmp_path / "theirs", nested)


def check_json(ours: Path, theirs: Path, nested: bool) -> None:
    """Same keys, same list of what is not quantised, the head's entries aside."""
    sections = [
        json.loads((folder / "config.json").read_text())["quantization_config"] for folder in (ours, theirs)
    ]
    separate = [
        json.loads((folder / "hf_quant_config.json").read_text())["quantization"] for folder in (ours, theirs)
    ]
    for mine, other in (sections, separate):
        key = "ignore" if "ignore" in mine else "exclude_modules"
        listed = [
            entry if nested else entry.replace("model.language_model.", "model.") for entry in other.pop(key)
        ]
        assert sorted(set(mine.pop(key)) - {"mtp*", "mtp.layers.0*"}) == sorted(listed)
        mine.pop("producer", None), other.pop("producer", None)
        assert mine == other

"""A quantised model as peers load it: the same weights, decoded, in a folder of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import QuantizedCheckpoint, as_plain


def plain_form(model: Path, folder: Path) -> Path:
    """`model` itself where nothing in it is quantised; else `folder`, which receives its bf16 form.

    The whole model is in memory meanwhile: this is for models of a size that a CPU benchmark uses.
    """
    plain = as_plain(Checkpoint.open(model))
    if not isinstance(plain, QuantizedCheckpoint):
        return model
    cpu = torch.device("cpu")
    weights = {
        name: plain.decoded(name, torch.bfloat16, cpu) if name in plain.modules else plain.weight(name)
        for name in plain.tensors
    }
    save_file(
        {name: w.contiguous() for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    config = {key: value for key, value in plain.config.items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (model / name).is_file():
            shutil.copy(model / name, folder / name)
    return folder

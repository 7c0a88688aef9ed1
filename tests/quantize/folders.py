"""Tiny folders and recipes that the tests of this room share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from paceline.models.checkpoint import Checkpoint
from paceline.quantize.export import quantize
from paceline.quantize.output_folder import OutputOptions
from paceline.quantize.plan import QuantizeOptions
from paceline.quantize.samples import Calibration
from tests.tiny import make_target

WEIGHTS_ONLY = (
    'rules: [{match: "*.self_attn.*_proj", format: w4a16_nvfp4}, {match: "*.mlp.*", format: w4a16_nvfp4}]'
)


def weights_only(folder: Path) -> str:
    """A recipe without activation scales, so that nothing has to run."""
    path = folder / "weights-only.yaml"
    path.write_text(WEIGHTS_ONLY)
    return str(path)


def tiny_model(folder: Path, **changes) -> Path:
    """A bf16 model with a head, in the wrapper's layout."""
    settings = {"nested": True, "vision": True, "tokenizer": False, "dtype": torch.bfloat16} | changes
    return make_target(folder, settings.pop("shape", "plain"), **settings)


def quantize_tiny(model: Path, out: Path, *, output: OutputOptions | None = None, progress=None, **changes):
    """Quantise weights only, without calibration."""
    options = QuantizeOptions(
        **{"recipe": weights_only(model.parent), "output": output or OutputOptions(), **changes}
    )
    return quantize(model, out, options, Calibration(), progress)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder."""
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint.weight(name) for name in checkpoint.tensors}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bytes, dtype and shape."""
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def contents(folder: Path) -> dict[str, str]:
    """sha256 of every file of a folder."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if file.is_file()
    }


def edit_tensors(folder: Path, change, file: str = "model.safetensors") -> None:
    """Rewrite one file with what `change` makes of its tensors."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / file).items()}
    save_file(change(tensors), folder / file, metadata={"format": "pt"})

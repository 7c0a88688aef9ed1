"""Targets in training form, from any folder that the engine loads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.errors import CheckpointError
from paceline.models.checkpoint import Checkpoint
from paceline.models.dense_config import DenseSpec
from paceline.models.quantized import as_plain
from paceline.models.registry import read_target_spec
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.dense import Dense
from paceline.train.modules.hybrid import Hybrid


def load_train_target(
    path: str | Path, device: torch.device | str = "cpu", compute: torch.dtype = torch.float32
) -> TrainTarget:
    """The target in folder `path`, frozen and in `compute`; quantised weights are decoded.

    Raises: CheckpointError or UnsupportedModelError, as the engine does for the same folder.
    """
    spec, checkpoint = read_target_spec(path), as_plain(Checkpoint.open(path))
    model = Dense(spec, compute) if isinstance(spec, DenseSpec) else Hybrid(spec, compute)
    fill(model, checkpoint, [n for n in checkpoint.tensors if not n.startswith("mtp.")])
    # Frozen, so there is nothing to keep in more digits than matrices are multiplied in.
    return model.to(device, compute).requires_grad_(False)


@torch.no_grad()
def fill(module: nn.Module, checkpoint: Checkpoint, names: list[str]) -> None:
    """Copy tensors into the parameters of the same names (without `model.` or `model.language_model.`).

    Raises: CheckpointError where one is missing or has another shape.
    """
    stored = {n.removeprefix("model.").removeprefix("language_model."): n for n in names}
    for name, parameter in module.named_parameters():
        if name not in stored:
            raise CheckpointError(f"{checkpoint.path}: tensor {name} is missing")
        value: Tensor = checkpoint.weight(stored[name])
        if value.shape != parameter.shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} is {tuple(value.shape)}, expected {tuple(parameter.shape)}"
            )
        parameter.copy_(value)

"""Where a drafter's weights start: random, or those of a published drafter."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.errors import PairingError
from paceline.models.checkpoint import Checkpoint
from paceline.models.dflash_config import read_spec
from paceline.models.quantized import as_plain
from paceline.models.spec import DrafterSpec, TargetSpec
from paceline.train.modules.drafter import Drafter, init_draft_weights


def new_drafter(spec: DrafterSpec, seed: int) -> Drafter:
    """A drafter with random weights, on the CPU; the same for a seed wherever it is trained."""
    drafter = Drafter(spec)
    init_draft_weights(drafter, spec.num_layers, torch.Generator().manual_seed(seed))
    return drafter


@torch.no_grad()
def continued_drafter(folder: Path, target: TargetSpec) -> Drafter:
    """The published drafter in `folder`, in any layout that the engine loads; quantised weights are decoded.

    Raises: the errors with which the engine refuses a drafter, PairingError where it does not fit `target`,
    and PairingError for layers that cannot be exported again.
    """
    checkpoint = as_plain(Checkpoint.open(folder))
    spec = read_spec(checkpoint, target)
    if len(set(spec.windows) - {None}) > 1:
        raise PairingError(f"{folder}: layers with windows of several sizes cannot be trained on")
    drafter = Drafter(spec)
    for name, parameter in drafter.named_parameters():
        parameter.copy_(checkpoint.weight(name))
    return drafter

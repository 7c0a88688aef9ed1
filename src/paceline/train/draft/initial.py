"""Where a drafter's weights start: random, or those of a published drafter."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.models.checkpoint import Checkpoint
from paceline.models.dflash_config import read_spec, warn_of_oddities
from paceline.models.quantized import as_plain
from paceline.models.spec import DrafterSpec, TargetSpec
from paceline.train.modules.drafter import Drafter


def new_drafter(spec: DrafterSpec, seed: int) -> Drafter:
    """A drafter with random weights, on the CPU; the same for a seed wherever it is trained."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Drafter(spec)


def continued_spec(folder: Path, target: TargetSpec) -> DrafterSpec:
    """The numbers of the published drafter in `folder`, in any layout that the engine loads.

    Raises: the errors with which the engine refuses a drafter, PairingError where it does not fit `target`.
    """
    return read_spec(as_plain(Checkpoint.open(folder)), target)


@torch.no_grad()
def continued_drafter(folder: Path, target: TargetSpec) -> Drafter:
    """The published drafter in `folder`; quantised weights are decoded. Errors as of `continued_spec`."""
    checkpoint = as_plain(Checkpoint.open(folder))
    drafter = Drafter(read_spec(checkpoint, target))
    warn_of_oddities(checkpoint, target)
    for name, parameter in drafter.named_parameters():
        parameter.copy_(checkpoint.weight(name))
    return drafter

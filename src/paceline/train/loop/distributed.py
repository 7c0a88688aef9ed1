"""Several processes under torchrun: joining them, sharing the work out, and tensors that are shared out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.engine.resolve import pick_device

_PATIENCE = timedelta(hours=3)
"""The others wait for process 0 while it evaluates."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands: process `rank` of `world`, computing on `device`."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0


@contextmanager
def joined(device: str) -> Iterator[Place]:
    """Join the processes that torchrun started, if it did. `device` is ``auto``, ``cpu`` or ``cuda``.

    Raises ConfigError for ``cuda`` without a GPU.
    """
    chosen = torch.device(pick_device(device))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    if world == 1:
        yield Place(chosen)
        return
    cuda = chosen.type == "cuda"
    own = chosen if cuda else None  # else NCCL guesses the GPU from the rank
    dist.init_process_group("nccl" if cuda else "gloo", timeout=_PATIENCE, device_id=own)
    try:
        yield Place(chosen, dist.get_rank(), world)
    finally:
        dist.destroy_process_group()


def share(module: nn.Module, place: Place, parallel: str) -> nn.Module:
    """`module` as it is called in each of several processes; the only process gets it back as it is.

    fsdp: parameters are whole from forward to backward, and gradients, masters and optimiser state divided.
    """
    if place.world == 1:
        if parallel == "fsdp":
            warnings.warn(
                "parallel: fsdp has no effect in one process; start several by torchrun", stacklevel=2
            )
        return module
    if parallel == "fsdp":
        fully_shard(module)
        return module
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def accumulate(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Around forward and backward of a micro-batch: processes exchange gradients only at the last one."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


@contextmanager
def assembled(module: nn.Module) -> Iterator[None]:
    """Within, the parameters of a divided module are whole in every process."""
    if isinstance(module, FSDPModule):
        module.unshard()
        yield
        module.reshard()
    else:
        yield


def whole(tensor: Tensor) -> Tensor:
    """A tensor that processes may have divided, in one piece; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """Whole `tensor`, the same in every process, divided as `model` is."""
    if not isinstance(model, DTensor):
        return tensor
    return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)


def total(tensor: Tensor, place: Place) -> Tensor:
    """The sum over processes, in place and without waiting for the device."""
    if place.world > 1:
        dist.all_reduce(tensor)
    return tensor


def from_first(value: float, place: Place) -> float:
    """What process 0 says."""
    if place.world == 1:
        return value
    said = torch.tensor([value], dtype=torch.float64, device=place.device)
    dist.broadcast(said, 0)
    return float(said)


def wait(place: Place) -> None:
    """Until every process is here."""
    if place.world > 1:
        dist.barrier()

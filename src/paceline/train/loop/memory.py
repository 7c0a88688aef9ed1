"""A step for which memory does not suffice: said before the first one where it can be foreseen, else instead
of torch's own words."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.cache.memory import memory_budget, total_memory
from paceline.errors import CapacityError

_CPU = "can't allocate memory"
"""What torch's allocator for the CPU says; it has no exception of its own."""

_LOWER = "lower the rows of a batch (and raise optim.gradient_accumulation instead), num_anchors or head_rows"
_SURE = {"cpu": 1.0, "cuda": 1.5}
"""An estimate beyond this share of all memory is surely too much. On a CPU it is below the peak of a real
run; on a GPU, which says itself when it is full, it was a quarter above the one that was measured."""


def shortage(estimate: int, device: torch.device) -> str | None:
    """Why the `estimate`d bytes of each process do not fit into what is free now; None where they do."""
    need, free, total = _needed(estimate, device), memory_budget(device, share=1.0), total_memory(device)
    if need <= free:
        return None
    there = f"{_gib(total)} in all" if need > total else f"{_gib(free)} of {_gib(total)} free"
    other = "" if need > total else "free memory, or "
    return f"training takes about {_gib(need)} of memory, {device.type} has {there}: {other}{_LOWER}"


def check_memory(estimate: int, device: torch.device) -> None:
    """Before a run. Warns of a shortage; raises CapacityError where it is sure, because a system without
    memory kills the process and says nothing."""
    text = shortage(estimate, device)
    if text is None:
        return
    if _needed(estimate, device) > _SURE[device.type] * total_memory(device):
        raise CapacityError(text)
    if os.environ.get("RANK", "0") == "0":
        warnings.warn(text, stacklevel=2)


def _needed(estimate: int, device: torch.device) -> int:
    """Of all processes that share the device's memory: those of a machine its own, on a GPU there is one."""
    return estimate * (int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1)


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


@contextmanager
def memory_faults(step: int) -> Iterator[None]:
    """Around step number `step`. Raises CapacityError for any of the ways in which memory ends."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError) or _CPU in str(error)
        if not known:
            raise
        first = (str(error).splitlines() or [""])[0]
        raise CapacityError(
            f"step {step} does not fit into memory: {_LOWER}; --plan estimates it ({first})"
        ) from error

"""A step for which memory does not suffice: an error that says what to lower, instead of torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.errors import CapacityError

_CPU = "can't allocate memory"
"""What torch's allocator for the CPU says; it has no exception of its own."""


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
            f"step {step} does not fit into memory: lower the rows of a batch (and raise "
            f"optim.gradient_accumulation instead), num_anchors or head_rows; --plan estimates it ({first})"
        ) from error

"""What the loop asks of whatever is trained: batches, a loss, an export and an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class Task(Protocol):
    """One module to train. Everything random comes from the generator, so that a step can be repeated.

    The loop numbers micro-batches: with gradient accumulation A, optimiser step s reads `batch` at
    ``step = s * A … s * A + A - 1``. Batch ``index = step * world + rank`` must depend on nothing but the
    task's seed and this index; then P processes see in one step what one process with A = P sees.
    """

    name: str
    module: nn.Module
    """What is trained, on its device, its parameters fp32 masters that the module casts where it uses them.
    Parameters with ``requires_grad=False`` are left alone; a frozen target does not belong inside."""
    steps_per_epoch: int
    """Batches (``index`` above) in one pass over the data."""

    @property
    def measures(self) -> bool:
        """Whether `evaluate` measures anything; asked of process 0."""

    def batch(self, step: int, rank: int, world: int) -> Any:
        """Micro-batch number `step` of process `rank` of `world`, on the module's device."""

    def loss(self, batch: Any, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar loss with its graph, and 0-dim tensors to log, all left on the device (no ``.item()``).

        `generator` is on the module's device, seeded by (seed, index). Two names mean something to the loop:
        ``tokens``: tokens processed, summed for the pace. ``weight``: the number that the loss is a mean
        over (for instance the count of labels); micro-batches and processes are then averaged by it, which
        equals one large batch. Without it they count alike. Everything else is averaged the same way.
        """

    def export(self, folder: Path) -> None:
        """Write the published format into the empty `folder`. Called in process 0 only."""

    def evaluate(self, folder: Path) -> dict[str, float]:
        """Measure an exported folder, for instance the acceptance of the serving engine; may be empty.

        Called in process 0 only. ``score``, higher is better, decides what is kept under ``best/``; without
        it there is no ``best/``. Must not touch the random state or the module's parameters.
        """


@runtime_checkable
class Compilable(Protocol):
    """A task that compiles its own parts; of others the loop compiles ``module``'s forward."""

    def compile(self) -> None:
        """Called once before the first step when the settings ask for torch.compile."""

"""One optimiser step: micro-batches, gradients, clipping, update. Nothing here waits for the device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from paceline.train.loop.distributed import Place, accumulate, share, total
from paceline.train.loop.optim import Optimizer
from paceline.train.loop.task import Compilable, Task
from paceline.train.settings.optim import OptimSettings

_TINY = 1e-12
_LEADING = ("steps", "grad_norm", "stop", "weight", "tokens")
"""Sums that every task has; the rest of the vector are ``loss`` and the task's own metrics, by weight."""


class _Loss(nn.Module):
    """A task's loss as a module's forward, which is where DDP and FSDP take hold of the parameters."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.module, self._loss = task.module, task.loss

    def forward(self, batch: Any, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        return self._loss(batch, generator)


class Stepper:
    """Does the steps of a task. `sums` is what happened since `take`, one fp64 vector on the device."""

    def __init__(self, task: Task, settings: OptimSettings, place: Place) -> None:
        self.task, self.settings, self.place = task, settings, place
        if settings.compile:
            task.compile() if isinstance(task, Compilable) else task.module.compile()
        self.model = share(_Loss(task), place, settings.parallel)
        self.optimizer = Optimizer(task.module, settings)
        self.generator = torch.Generator(device=place.device)
        self.names: tuple[str, ...] = ()
        self.sums = torch.zeros(0, dtype=torch.float64, device=place.device)

    def step(self, step: int, learning_rate: float, stop: bool = False) -> None:
        """Optimiser step number `step`. `stop`: this process was asked to stop, which the others learn."""
        parts = [self._micro_batch(step * self.count + m, m == self.count - 1) for m in range(self.count)]
        summed = torch.stack(parts).sum(0)
        summed[0] = float(stop)
        total(summed, self.place)
        # DDP and FSDP average over processes; the sum over all micro-batches by their total weight is due.
        scale = self.place.world / summed[1].clamp(min=_TINY)
        norm = self.optimizer.clip(scale.float(), self.settings.max_grad_norm)
        self.optimizer.step(learning_rate)
        leading = torch.stack([torch.ones_like(norm), norm]).to(torch.float64)
        summed = torch.cat([leading, summed])
        self.sums = summed if self.sums.numel() == 0 else self.sums + summed

    @property
    def count(self) -> int:
        """Micro-batches of a step in each process."""
        return self.settings.gradient_accumulation

    def take(self) -> dict[str, float]:
        """Means since the last call and the sums ``steps``, ``stop`` and ``tokens``; waits for the device."""
        values = dict(zip((*_LEADING, *self.names), self.sums.tolist(), strict=True))
        self.sums = self.sums.new_zeros(0)
        weight = max(values.pop("weight"), _TINY)
        means = {name: values[name] / weight for name in self.names}
        means["grad_norm"] = values["grad_norm"] / values["steps"]
        return {**means, **{name: values[name] for name in ("steps", "stop", "tokens")}}

    def glance(self) -> tuple[float, float]:
        """Loss and gradient norm summed since the last `take`, to see whether they are numbers."""
        values = dict(zip((*_LEADING, *self.names), self.sums.tolist(), strict=False))
        return values.get("loss", 0.0), values.get("grad_norm", 0.0)

    def state(self) -> dict[str, Any]:
        """What `take` has not reported yet, so that a resumed run reports the same."""
        return {"names": list(self.names), "sums": self.sums.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        self.names = tuple(state["names"])
        self.sums = torch.tensor(state["sums"], dtype=torch.float64, device=self.place.device)

    def _micro_batch(self, number: int, last: bool) -> Tensor:
        """Forward and backward; gives [0, weight, tokens, loss * weight, metric * weight, ...]."""
        rank, world = self.place.rank, self.place.world
        self.generator.manual_seed(seed_of(self.settings.seed, number * world + rank))
        batch = self.task.batch(number, rank, world)
        with accumulate(self.model, last):
            loss, metrics = self.model(batch, self.generator)
            metrics = dict(metrics)
            weight = metrics.pop("weight", None)
            (loss if weight is None else loss * weight).backward()
        tokens = metrics.pop("tokens", None)
        named = {"loss": loss, **metrics}
        self.names = self.names or tuple(named)
        assert self.names == tuple(named), "a task gives the same metrics in the same order each time"
        zero = torch.zeros((), dtype=torch.float64, device=self.place.device)

        def scalar(value: Tensor | None, absent: Tensor) -> Tensor:
            return absent if value is None else value.detach().to(zero.device, zero.dtype)

        w = scalar(weight, zero + 1.0)
        return torch.stack([zero, w, scalar(tokens, zero), *(scalar(v, zero) * w for v in named.values())])


def seed_of(seed: int, index: int) -> int:
    """The seed of batch `index`: neighbours have nothing in common, and a step can be repeated alone."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def count_parameters(parameters: Iterable[Tensor]) -> int:
    """Numbers in all of them."""
    return sum(p.numel() for p in parameters)

"""Muon for the matrices, AdamW for the rest, and the wall-clock loop that drives both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from paceline.train.config import BudgetConfig

# Coefficients of the quintic Newton-Schulz step, from the Muon optimiser's public description (Jordan, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_NARROW = ("in_proj_a.weight", "in_proj_b.weight")


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of each matrix of g [n, r, c] towards 1; result has the dtype of the
    iteration."""
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


class Optimizer:
    """One learning rate serves both halves, because Muon's update is scaled to the RMS of AdamW's."""

    def __init__(self, module: nn.Module, budget: BudgetConfig) -> None:
        self.lr, self.decay, self.momentum = budget.learning_rate, budget.weight_decay, 0.95
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        plain: list[Tensor] = []
        narrow: list[Tensor] = []
        for name, p in module.named_parameters():
            if p.dim() == 2 and "embed_tokens" not in name and not name.endswith(_NARROW):
                groups.setdefault(tuple(p.shape), []).append(p)
            else:
                (narrow if name.endswith(_NARROW) else plain).append(p)
        self.groups = [
            (ps, torch.zeros(len(ps), *shape, device=ps[0].device)) for shape, ps in groups.items()
        ]
        sets = [{"params": plain, "weight_decay": 0.0}, {"params": narrow, "weight_decay": self.decay}]
        sets = [s for s in sets if s["params"]]
        self.adam = torch.optim.AdamW(sets, lr=self.lr, betas=(0.9, 0.95), eps=1e-10)
        self.parameters = [p for ps, _ in self.groups for p in ps] + plain + narrow

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Clip to norm 1, update with learning rate x factor, clear the gradients."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        lr = self.lr * factor
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        for ps, buffer in self.groups:
            grad = torch.stack([p.grad for p in ps if p.grad is not None])
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonalise(grad.lerp(buffer, self.momentum)).float()
            update *= -lr * 0.2 * math.sqrt(max(update.shape[-2:]))
            torch._foreach_mul_(ps, 1 - lr * self.decay)
            for p, u in zip(ps, update.unbind(0), strict=True):
                p.add_(u)
        for p in self.parameters:
            p.grad = None


@dataclass(slots=True)
class History:
    """What a stage's log says about its training."""

    steps: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    compile_seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """For the log JSON."""
        return {
            "steps": self.steps,
            "train_seconds": round(self.seconds, 2),
            "warm_up_seconds": round(self.compile_seconds, 2),
            "losses": [[s, round(x, 4)] for s, x in self.losses],
        }


def run_budget(
    loss_of: Callable[[], Tensor], optimizer: Optimizer, budget: BudgetConfig, say: Callable[[str], None]
) -> History:
    """Step until the budget is spent; the learning rate rises over ``warmup`` and falls linearly to zero.

    The first call of ``loss_of`` (which may compile) is outside the clock and its gradient is dropped.
    """
    history = History()
    begin = time.perf_counter()
    loss_of().backward()
    for p in optimizer.parameters:
        p.grad = None
    start = time.perf_counter()
    history.compile_seconds = start - begin
    every = 20 if budget.max_steps > 200 else max(1, budget.max_steps // 10)
    shown = start
    while True:
        progress = max((time.perf_counter() - start) / budget.seconds, history.steps / budget.max_steps)
        if progress >= 1.0:
            break
        loss = loss_of()
        loss.backward()
        optimizer.step(min(1.0, (progress + 1e-3) / (budget.warmup + 1e-3)) * (1.0 - progress))
        history.steps += 1
        # Reading the loss also bounds how far the host runs ahead of the device.
        if history.steps % every == 0 or history.steps == 1:
            history.losses.append((history.steps, float(loss.detach())))
            if time.perf_counter() - shown > 5:
                shown = time.perf_counter()
                say(f"step {history.steps} loss {history.losses[-1][1]:.3f} {shown - start:.0f}s")
    history.losses.append((history.steps, float(loss.detach())))
    history.seconds = time.perf_counter() - start
    return history


class Windows:
    """Random windows of a token stream [N]: each pass shifts the grid and permutes it, so every token is
    seen once."""

    def __init__(self, stream: Tensor, length: int, seed: int) -> None:
        self.stream, self.length = stream, min(length, stream.numel() - 2)
        self.generator = torch.Generator().manual_seed(seed)
        self.order, self.next, self.passes = torch.empty(0, dtype=torch.long), 0, -1

    def batch(self, size: int) -> Tensor:
        """[size, length + 1] int64."""
        if self.next + size > self.order.numel():
            offset = int(torch.randint(0, self.length, (1,), generator=self.generator))
            count = max(1, (self.stream.numel() - offset - 1) // self.length)
            order = torch.randperm(count, generator=self.generator) * self.length + offset
            order = order.clamp(max=self.stream.numel() - self.length - 1)
            self.order = order.repeat(-(-size // count)).to(self.stream.device)
            self.next, self.passes = 0, self.passes + 1
        starts = self.order[self.next : self.next + size]
        self.next += size
        span = torch.arange(self.length + 1, device=self.stream.device)
        return self.stream[starts.unsqueeze(1) + span].long()

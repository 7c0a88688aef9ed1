"""The learning rate as a function of the step, and how many steps there are."""

from __future__ import annotations

import math

from paceline.train.settings.optim import OptimSettings

PACE_STEPS = 20
"""At most so many steps measure the pace of a run that ends after seconds."""


def learning_rate(step: int, total: int, settings: OptimSettings, paced: int = 0) -> float:
    """Of zero-based `step` out of `total`.

    Zero for the `paced` steps that measured the pace, then linear up to the configured rate over
    ``warmup_ratio`` of the rest, then down to ``min_lr_ratio`` of it, which step `total` would reach.
    """
    step, total = step - paced, total - paced
    if step < 0:
        return 0.0
    warmup = math.ceil(settings.warmup_ratio * total)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    fall = (1.0 + math.cos(math.pi * progress)) / 2 if settings.schedule == "cosine" else 1.0 - progress
    return settings.learning_rate * (settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * fall)


def planned_steps(settings: OptimSettings, steps_per_epoch: int, world: int = 1) -> int | None:
    """Optimiser steps by ``epochs`` and ``max_steps``, whichever is less; None if only seconds end the run.

    `steps_per_epoch` counts batches of one process, as `Task` does.
    """
    limits = [settings.max_steps] if settings.max_steps is not None else []
    if settings.epochs is not None:
        batches = settings.epochs * steps_per_epoch
        limits.append(max(1, math.ceil(batches / (settings.gradient_accumulation * world) - 1e-9)))
    return min(limits, default=None)


def steps_in(seconds: float, pace: float, done: int, spent: float) -> int:
    """Steps in all when `done` of them took `spent` seconds and the next take `pace` seconds each."""
    return done + max(1, int((seconds - spent) / max(pace, 1e-9)))

"""The loop that trains a task."""

from __future__ import annotations

from paceline.train.loop.task import Compilable, Task
from paceline.train.settings.optim import OptimSettings

__all__ = ["Compilable", "OptimSettings", "Task"]

"""What a run says: one line on the terminal, JSON lines, and TensorBoard where it is asked for."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.train.loop.resume import disk_faults

METRICS = "metrics.jsonl"
_SHOWN_APART = {"loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second", "seconds_per_step"}
"""Metrics of every task; the others are the task's own."""


class Metrics:
    """Writes the metrics of one run under `out`; a context manager. Processes other than the first have none.

    On a terminal a line that is kept up to date, elsewhere a line each time; always on stderr.
    """

    def __init__(self, out: Path, name: str, tensorboard: bool, console: Console | None = None) -> None:
        self._name, self._console = name, console or Console(stderr=True)
        self._path = out / METRICS
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _board(out / "tensorboard") if tensorboard else None
        self._live: Live | None = None

    def __enter__(self) -> Metrics:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        with disk_faults(self._path):  # closing writes again what a full disk did not take
            self._file.close()
        if self._board is not None:
            self._board.close()

    def log(self, step: int, total: int | None, values: dict[str, float], left: float | None) -> None:
        """Metrics of training after `step` steps; `left`: seconds until the end, if known."""
        self._write({"step": step, **values}, step, "train", values)
        parts = [f"step {step}/{total or '?'}", f"loss {values['loss']:.4f}"]
        parts += [f"{name} {value:.4f}" for name, value in values.items() if name not in _SHOWN_APART]
        parts.append(f"lr {values['learning_rate']:.2e}")
        parts.append(f"norm {values['grad_norm']:.2f}")
        if values.get("tokens_per_second"):
            parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        if left is not None:
            parts.append(f"{clock(left)} left")
        line = f"{self._name}: {', '.join(parts)}"
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        else:
            self.say(line)

    def evaluated(self, step: int, values: dict[str, float]) -> None:
        """What the task measured of the exported module after `step` steps."""
        self._write({"step": step, "evaluation": values}, step, "evaluation", values)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
        self.say(f"{self._name}: step {step}: {shown}")

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(Text(line), soft_wrap=True)

    def _write(self, record: dict[str, Any], step: int, group: str, values: dict[str, float]) -> None:
        with disk_faults(self._path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        if self._board is not None:
            for key, value in values.items():
                self._board.add_scalar(f"{group}/{key}", value, step)


def forget_after(out: Path, step: int) -> None:
    """Drop the metrics of steps later than `step`, which a resumed run makes again, and a torn last line."""
    path = out / METRICS
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            continue
    work = path.with_name(f".{METRICS}.unfinished")
    with disk_faults(path):
        work.write_text("".join(kept), encoding="utf-8")
    os.replace(work, path)


def clock(seconds: float) -> str:
    """3725 -> 1:02:05; 65 -> 1:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn(
            "tensorboard is not installed, so metrics go to metrics.jsonl alone: "
            "pip install 'paceline[tensorboard]'",
            stacklevel=2,
        )
        return None
    return SummaryWriter(str(folder))

"""The published folders of a run: last/ and best/, each replaced as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError

from paceline.errors import CapacityError, ConfigError
from paceline.train.loop.resume import disk_faults, replace_folder, write_json
from paceline.train.loop.task import Task

LAST, BEST, BEST_SCORE = "last", "best", "best.json"
SCORE = "score"


def check_folder(out: Path) -> None:
    """Raises ConfigError where `out` cannot become a folder because it, or one that it lies in, is a file.

    For the beginning of a command: making the folder fails only after much was read.
    """
    stands = next((place for place in (out, *out.parents) if place.exists()), None)
    if stands is not None and not stands.is_dir():
        raise ConfigError(f"out: {stands} is a file; name a folder", key="out")


class Outputs:
    """Exports a task into a run's folder `out`; used by process 0 alone."""

    def __init__(self, out: Path, task: Task) -> None:
        self.out, self.task = out, task

    def export(self) -> Path:
        """Write last/ anew."""
        work = self.out / f".{LAST}.unfinished"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            with disk_faults(self.out / LAST, SafetensorError):
                self.task.export(work)
        except CapacityError:
            shutil.rmtree(work, ignore_errors=True)
            raise
        replace_folder(work, self.out / LAST)
        return self.out / LAST

    def evaluate(self, step: int) -> dict[str, float]:
        """Measure last/; where its score beats that of best/, it becomes best/."""
        values = self.task.evaluate(self.out / LAST)
        if SCORE in values and values[SCORE] > self.best_score():
            work = self.out / f".{BEST}.unfinished"
            shutil.rmtree(work, ignore_errors=True)
            with disk_faults(self.out / BEST):
                shutil.copytree(self.out / LAST, work)
            replace_folder(work, self.out / BEST)
            write_json(self.out / BEST_SCORE, {"step": step, **values})
        return values

    def places(self) -> str:
        """Where the published folders stand, for the last line of a run."""
        path = self.out / BEST_SCORE
        if not (self.out / BEST).is_dir() or not path.is_file():
            return f"{self.out / LAST}"
        step = json.loads(path.read_text(encoding="utf-8"))["step"]
        return f"{self.out / LAST}, and the best of them, of step {step}, in {self.out / BEST}"

    def best_score(self) -> float:
        """Of what lies in best/; minus infinity where nothing does."""
        path = self.out / BEST_SCORE
        if not path.is_file():
            return float("-inf")
        return float(json.loads(path.read_text(encoding="utf-8"))[SCORE])

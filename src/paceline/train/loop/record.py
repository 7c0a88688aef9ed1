"""run.json: what a run was told and where it ran; whether a second run in the same folder may go on."""

from __future__ import annotations

import json
import platform
import shutil
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch

from paceline import __version__
from paceline.errors import ConfigError
from paceline.train.data.shards import lock
from paceline.train.loop.distributed import Place
from paceline.train.loop.metrics import METRICS
from paceline.train.loop.outputs import BEST, BEST_SCORE, LAST
from paceline.train.loop.resume import checkpoint_steps, write_json
from paceline.train.settings.optim import OptimSettings

RECORD, LOCK = "run.json", ".lock"
_FREE = {
    "log_every",
    "eval_every",
    "save_every",
    "keep_checkpoints",
    "tensorboard",
    "compile",
    "parallel",
    "gradient_accumulation",  # what counts is its product with the number of processes
}
"""Settings that a resumed run may change, because they do not change what is learnt."""


class RunRecord:
    """What stands in `out` about the run, before and after this one begins.

    As a context it gives back on leaving the folder that `begin` has taken.
    """

    def __init__(self, out: Path, settings: OptimSettings, config: dict[str, Any], place: Place) -> None:
        self.out, self.path, self.place = out, out / RECORD, place
        self.config = json.loads(json.dumps(config))
        self.batches = settings.gradient_accumulation * place.world
        self.before = self._read()
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def finished(self) -> bool:
        """Whether the run that is resumed had come to its end."""
        return "finished" in self.before

    @property
    def evaluation(self) -> dict[str, float]:
        """What a finished run had measured at its end."""
        return dict(self.before.get("evaluation", {}))

    def check(self, *, resume: bool, force: bool) -> None:
        """Raises ConfigError if `out` holds a run that must not be touched, or another than this one."""
        steps = checkpoint_steps(self.out / "checkpoints")
        if resume and steps:
            self._compare()
        elif resume:
            warnings.warn(f"{self.out} has no checkpoint to resume from: begins at step 0", stacklevel=3)
        elif not force and (steps or (self.out / LAST).exists()):
            where = f" at step {steps[-1]}" if steps else ""
            raise ConfigError(
                f"{self.out} holds a run{where}: --resume continues it, --force replaces it", key="out"
            )
        if not resume:
            self.before = {}

    def begin(self, *, resume: bool) -> None:
        """Keep other runs out of `out` and write run.json; without `resume` remove what an earlier run left,
        and nothing else. Raises ConfigError while another run is at work there."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / LOCK).touch()
        self._lock = lock(self.out / LOCK)
        if not resume:
            for name in ("checkpoints", LAST, BEST, "tensorboard"):
                shutil.rmtree(self.out / name, ignore_errors=True)
            for name in (METRICS, BEST_SCORE):
                (self.out / name).unlink(missing_ok=True)
        write_json(self.path, {**self.before, **self._environment()})

    def finish(self, steps: int, evaluation: dict[str, float]) -> None:
        """The run has come to its end."""
        written = json.loads(self.path.read_text(encoding="utf-8"))
        write_json(self.path, {**written, "finished": _now(), "steps": steps, "evaluation": evaluation})

    def _environment(self) -> dict[str, Any]:
        device = self.place.device
        return {
            "started": self.before.get("started", _now()),
            "config": self.config,
            "batches_per_step": self.batches,
            "processes": self.place.world,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "versions": {
                "paceline": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def _compare(self) -> None:
        then, now = dict(_flat(self.before.get("config", {}))), dict(_flat(self.config))
        then["batches of a step (processes × gradient_accumulation)"] = self.before.get("batches_per_step")
        now["batches of a step (processes × gradient_accumulation)"] = self.batches
        for key in sorted(then.keys() | now.keys()):
            if not _is_free(key) and then.get(key) != now.get(key):
                raise ConfigError(
                    f"--resume needs the settings of the stopped run: {key} was {then.get(key)!r}, is "
                    f"{now.get(key)!r}; put it back, or begin anew with --force",
                    key=key,
                )

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}


def _is_free(key: str) -> bool:
    """Also the layout that is written, and the name of the folder, which may have been moved."""
    return key == "out" or key.startswith("export.") or key.rpartition(".")[2] in _FREE


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The loop that trains a task: steps, logs, evaluations, checkpoints, and an orderly stop.

`out` then holds run.json (configuration, versions, device), metrics.jsonl, checkpoints/step-N to resume from,
and last/ and best/ in the published format. An exact repetition of a step needs the weights, the optimiser's
state and the step number only: batches and random numbers are functions of the step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from paceline.errors import ConfigError
from paceline.train.loop.distributed import Place, assembled, from_first, joined, like, wait, whole
from paceline.train.loop.memory import memory_faults
from paceline.train.loop.metrics import Metrics, forget_after
from paceline.train.loop.outputs import Outputs
from paceline.train.loop.pace import Pace
from paceline.train.loop.record import RunRecord
from paceline.train.loop.resume import checkpoint_steps, load_newest, save_checkpoint
from paceline.train.loop.schedule import learning_rate, planned_steps
from paceline.train.loop.signals import StopRequest
from paceline.train.loop.step import Stepper, count_parameters
from paceline.train.loop.task import Compilable, Task
from paceline.train.settings.optim import OptimSettings

EVALUATIONS = 10
"""So often a run is evaluated whose settings do not say how often."""

__all__ = ["Compilable", "OptimSettings", "Outcome", "Place", "Task", "Trainer", "train"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    steps: int
    evaluation: dict[str, float]
    """Of the last export; empty where the task measures nothing, and in processes other than the first."""

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"steps": self.steps, **self.evaluation}


class Trainer:
    """Trains one task once, in this process and in the others that torchrun started."""

    def __init__(
        self,
        task: Task,
        settings: OptimSettings,
        out: Path,
        place: Place | torch.device | str,
        *,
        config: dict[str, Any] | None = None,
        resume: bool = False,
        force: bool = False,
    ) -> None:
        """config: the whole resolved configuration, kept in run.json and compared when resuming.

        Raises ConfigError if `out` holds a run and neither `resume` nor `force` says what becomes of it, and
        while another run is at work there.
        """
        self.task, self.settings, self.out = task, settings, out
        self.place = place if isinstance(place, Place) else Place(torch.device(place))
        self.record = RunRecord(out, settings, config or settings.model_dump(mode="json"), self.place)
        self.record.check(resume=resume, force=force)
        wait(self.place)  # before process 0 removes or writes anything that the others look for
        if self.place.first:
            self.record.begin(resume=resume)
        self.stepper = Stepper(task, settings, self.place)
        self.outputs, self.pace = Outputs(out, task), Pace(self.place)
        self.measured = from_first(float(task.measures), self.place) > 0
        self.planned = planned_steps(settings, task.steps_per_epoch, self.place.world)
        self.total = None if settings.seconds is not None else self.planned
        self.done, self.paced, self.tokens, self._rate = 0, 0, 0.0, 0.0
        if resume:
            self._restore()
        wait(self.place)

    def run(self) -> Outcome:
        """Step until the end. Asked to stop (Ctrl-C) it saves, exports and raises KeyboardInterrupt.

        Raises ConfigError if the loss is no number any more; checkpoints from before stay.
        """
        if not self.place.first:
            return self._run(None)
        with self.record, Metrics(self.out, self.task.name, self.settings.tensorboard) as metrics:
            trained = count_parameters(self.stepper.optimizer.parameters)
            processes = f", {self.place.world} processes" if self.place.world > 1 else ""
            begin = f", from step {self.done}" if self.done else ""
            metrics.say(f"{trained:,} parameters, {self.place.device}{processes}{begin}")
            return self._run(metrics)

    def _run(self, metrics: Metrics | None) -> Outcome:
        if self.record.finished and self.done == self.total:
            if metrics:
                metrics.say(f"finished at step {self.done} already: nothing to do; {self.outputs.places()}")
            return Outcome(self.done, self.record.evaluation)
        self.pace.start(self.done)
        with StopRequest() as stop:
            while self.total is None or self.done < self.total:
                self._step(stop.asked)
                # Several processes stop where they log: there each learns of the others' signals.
                asked = stop.asked and self.place.world == 1
                if self._due(self.settings.log_every) or self.done == self.total:
                    asked = self._log(metrics) or asked
                if self._evaluation_due() and self.done != self.total:
                    self._evaluate_under_way(metrics)
                if asked or self._due(self.settings.save_every) or self.done == self.total:
                    self._save()
                if asked and self.done != self.total:
                    self._stop(metrics)
        evaluation = self._evaluate(metrics)
        if self.place.first:
            self.record.finish(self.done, evaluation)
        if metrics:
            metrics.say(f"finished at step {self.done}: {self.outputs.places()}")
        return Outcome(self.done, evaluation)

    def _due(self, every: int) -> bool:
        return every > 0 and self.done % every == 0

    def _evaluation_due(self) -> bool:
        """As the settings say; where they say nothing, at every tenth of the run once its length is known."""
        if self.settings.eval_every is not None:
            return self._due(self.settings.eval_every)
        if self.total is None or not self.measured:
            return False
        now, before = (done * EVALUATIONS // self.total for done in (self.done, self.done - 1))
        return now > before

    def _stop(self, metrics: Metrics | None) -> NoReturn:
        """What was learnt so far is saved already, and is now exported as well."""
        if metrics:
            metrics.say(f"stopped and saved at step {self.done}: --resume goes on from there")
        self._export()
        if metrics:
            metrics.say(f"exported as of step {self.done}: {self.outputs.places()}")
        raise KeyboardInterrupt

    def _step(self, stop: bool) -> None:
        known = self.total is not None
        self._rate = learning_rate(self.done, self.total, self.settings, self.paced) if self.total else 0.0
        with memory_faults(self.done + 1):
            self.stepper.step(self.done, self._rate, stop)
        self.done += 1
        self.pace.after_step(self.done)
        if not known and self.settings.seconds is not None:
            total = self.pace.total_steps(self.done, self.settings.seconds)
            if total is not None:
                self.paced, self.total = self.done, min(total, self.planned or total)

    def _log(self, metrics: Metrics | None) -> bool:
        """Read what happened since the last time; gives whether any process was asked to stop."""
        values = self.stepper.take()
        steps, seconds = self.pace.window(self.done)
        stop, tokens = values.pop("stop") > 0, values.pop("tokens")
        self.tokens += tokens
        per_step = tokens / values.pop("steps")
        self._check(values["loss"], values["grad_norm"])
        values["learning_rate"] = self._rate
        if self.tokens:
            values["tokens"] = self.tokens
        left = None
        if steps > 0:
            values["seconds_per_step"] = seconds / steps
            if tokens:
                values["tokens_per_second"] = per_step * steps / seconds
            if self.total is not None:
                left = (self.total - self.done) * seconds / steps
        if metrics:
            metrics.log(self.done, self.total, values, left)
        return stop

    def _check(self, loss: float, norm: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ConfigError(
                f"the loss is {loss}, its gradient's norm {norm} after step {self.done}: lower "
                f"optim.learning_rate; --resume goes back to the last checkpoint",
                key="optim.learning_rate",
            )

    def _evaluate(self, metrics: Metrics | None) -> dict[str, float]:
        """Export, and measure what was exported; the other processes wait."""
        values: dict[str, float] = {}
        with self.pace.paused():
            self._export()
            if metrics:
                values = self.outputs.evaluate(self.done)
                if values:
                    metrics.evaluated(self.done, values)
            wait(self.place)
        return values

    def _export(self) -> None:
        with assembled(self.stepper.model):
            if self.place.first:
                self.outputs.export()
        wait(self.place)

    def _evaluate_under_way(self, metrics: Metrics | None) -> None:
        """An evaluation that fails ends the run, but costs no step that was done."""
        try:
            self._evaluate(metrics)
        except Exception:
            if self.place.world == 1:  # saving takes all processes, and the others wait elsewhere
                self._save()
            raise

    def _save(self) -> None:
        with self.pace.paused():
            self._check(*self.stepper.glance())
            state = {
                "module": {name: whole(t).cpu() for name, t in self.task.module.state_dict().items()},
                "optimizer": self.stepper.optimizer.state(),
                "sums": self.stepper.state(),
                "total": self.total,
                "paced": self.paced,
                "tokens": self.tokens,
            }
            if self.place.first:
                save_checkpoint(self.out / "checkpoints", self.done, state, self.settings.keep_checkpoints)
            wait(self.place)

    def _restore(self) -> None:
        state = load_newest(self.out / "checkpoints")
        wait(self.place)  # all have read before anything is written
        if state is None and checkpoint_steps(self.out / "checkpoints") and self.place.first:
            warnings.warn(f"{self.out} has no sound checkpoint left: begins at step 0", stacklevel=3)
        if state is not None:
            self.done, self.total, self.paced = state["step"], state["total"], state["paced"]
            self.tokens = state["tokens"]
            self.stepper.optimizer.load_state(state["optimizer"])
            self.stepper.load_state(state["sums"])
            with torch.no_grad():
                for name, tensor in self.task.module.state_dict().items():
                    tensor.copy_(like(state["module"][name].to(tensor.device), tensor))
        if self.place.first:
            forget_after(self.out, self.done)


def train(
    make_task: Callable[[Place], Task],
    settings: OptimSettings,
    out: Path,
    *,
    device: str,
    config: dict[str, Any],
    resume: bool = False,
    force: bool = False,
) -> Outcome:
    """Join the processes, build the task where it will run, train it. What every command does.

    device: ``auto``, ``cpu`` or ``cuda``. `make_task` finds torch seeded with ``settings.seed``.
    """
    with joined(device) as place:
        torch.manual_seed(settings.seed)
        if place.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # for what is left in fp32
        task = make_task(place)
        return Trainer(task, settings, out, place, config=config, resume=resume, force=force).run()

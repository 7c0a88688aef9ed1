"""What a run would be, before anything is loaded: settings, parameters, memory, tokens, time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.train.loop.memory import shortage
from paceline.train.loop.metrics import METRICS, clock
from paceline.train.loop.optim import muon_takes
from paceline.train.loop.schedule import planned_steps
from paceline.train.loop.step import count_parameters
from paceline.train.settings.optim import OptimSettings

_FP32 = 4
_WIDE = 34
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Work:
    """What one batch of one process costs, as far as shapes tell."""

    tokens: int
    activations: int
    """Bytes kept from the forward pass for the backward one, plus the largest temporaries; an estimate."""
    steps_per_epoch: int
    """Batches of one process in a pass over the data; see `Task.steps_per_epoch`."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Parameters that are used and not trained, such as the target of a drafter."""

    parameters: int = 0
    nbytes: int = 0


def layer_activations(
    tokens: int, layers: int, hidden: int, inner: int, mixer: int, compute: torch.dtype
) -> int:
    """Bytes that `layers` pre-norm layers keep of `tokens` tokens: a mixer whose projections are `mixer` wide
    in all, a SwiGLU MLP of width `inner`, two norms that work in fp32."""
    numbers = (
        4 * hidden + mixer + 3 * inner
    )  # inputs of both norms and both blocks; projections; gate, up, product
    return layers * tokens * (numbers * compute.itemsize + 2 * hidden * _FP32)


def make_plan(
    name: str,
    config: dict[str, Any],
    settings: OptimSettings,
    *,
    module: nn.Module,
    work: Work,
    out: Path,
    device: torch.device,
    frozen: Frozen | None = None,
) -> dict[str, Any]:
    """A plan for `show_plan`. module: as it would be trained, on the meta device; nothing is computed."""
    world = _world()
    frozen = frozen or Frozen()
    kept = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    trained = count_parameters(p for p in module.parameters() if p.requires_grad)
    memory = estimate_memory(settings, module, work.activations, device, frozen)
    steps = None if settings.seconds is not None else planned_steps(settings, work.steps_per_epoch, world)
    batches = settings.gradient_accumulation * world
    seconds, source = _time(settings, steps, out)
    return {
        "command": name,
        "settings": config,
        "device": str(device),
        "compute_dtype": str(settings.compute(device)).removeprefix("torch."),
        "processes": world,
        "parameters": {"trained": trained, "frozen": frozen.parameters + kept},
        "memory": memory,
        "shortage": shortage(memory["total"], device),
        "steps": steps,
        "steps_per_epoch": max(1, -(-work.steps_per_epoch // batches)),
        "tokens_per_step": work.tokens * batches,
        "tokens": None if steps is None else steps * work.tokens * batches,
        "seconds": seconds,
        "seconds_from": source,
    }


def estimate_memory(
    settings: OptimSettings, module: nn.Module, activations: int, device: torch.device, frozen: Frozen
) -> dict[str, int]:
    """Bytes in one process by what they hold, and their ``total``. module: on any device; activations: see
    `Work`."""
    world, compute = _world(), settings.compute(device)
    kept = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    count = count_parameters(trained.values())
    matrices = sum(p.numel() for n, p in trained.items() if settings.optimizer == "muon" and muon_takes(n, p))
    parts = world if settings.parallel == "fsdp" else 1
    copies = (
        0 if compute is torch.float32 else count * compute.itemsize
    )  # masters cast at use, kept for backward
    if parts > 1:
        copies += count * _FP32  # put together from the processes' parts
    memory = {
        "masters": count * _FP32 // parts,
        "gradients": count * _FP32 // parts,
        "optimizer": (2 * count - matrices) * _FP32 // parts,
        "cast_weights": copies,
        "frozen_weights": frozen.nbytes + kept * _FP32,
        "activations": activations,
    }
    return {**memory, "total": sum(memory.values())}


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _time(settings: OptimSettings, steps: int | None, out: Path) -> tuple[float | None, str]:
    """Seconds of training and where they are known from."""
    pace = last_pace(out)
    if settings.seconds is not None:
        return settings.seconds, "optim.seconds; the number of steps is fixed after its pace is measured"
    if steps is None or pace is None:
        return None, f"no run in {out} has measured a pace yet"
    return steps * pace, f"the pace of the run in {out}"


def last_pace(out: Path) -> float | None:
    """Seconds per optimiser step that the run in `out` logged last; None where there is none."""
    path = out / METRICS
    if not path.is_file():
        return None
    paces = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            paces.append(json.loads(line).get("seconds_per_step"))
        except ValueError:
            continue  # the last line of a run that was killed
    return next((float(pace) for pace in reversed(paces) if pace is not None), None)


def show_plan(plan: dict[str, Any], as_json: bool) -> None:
    """Print a plan on stdout, in the first process alone; a command may add ``data`` and ``arithmetic``."""
    if as_json or os.environ.get("RANK", "0") != "0":
        show(plan, as_json)
        return
    unit = {"memory": lambda n: f"{n / _GIB:10.3f} GiB", "parameters": lambda n: f"{n:14,}"}
    print("settings")
    for key, value in _flat(plan["settings"]):
        print(f"  {key:{_WIDE}} {value}")
    for section in ("parameters", "memory"):
        print(section + (" (estimated, in one process)" if section == "memory" else ""))
        for key, value in plan[section].items():
            print(f"  {key.replace('_', ' '):{_WIDE}} {unit[section](value)}")
    if plan["shortage"]:
        print(f"  does not fit: {plan['shortage']}")
    print("work")
    work = {
        "device": plan["device"] + (f", {plan['processes']} processes" if plan["processes"] > 1 else ""),
        "compute dtype": plan["compute_dtype"],
        "steps": _count(plan["steps"]),
        "steps of an epoch": _count(plan["steps_per_epoch"]),
        "tokens a step": _count(plan["tokens_per_step"]),
        "tokens": _count(plan["tokens"]),
        "time": f"{'unknown' if plan['seconds'] is None else clock(plan['seconds'])}: {plan['seconds_from']}",
    }
    for key, value in work.items():
        print(f"  {key:{_WIDE}} {value}")
    for section in ("data", "arithmetic"):
        if section in plan:
            print(section)
            for key, value in _flat(plan[section]):
                print(f"  {key:{_WIDE}} {value}")


def show(values: dict[str, Any], as_json: bool) -> None:
    """Print a result on stdout, in the first process alone: one JSON line, or one value a line."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps(values, ensure_ascii=False), flush=True)
        return
    for key, value in _flat(values):
        print(f"{key:{_WIDE}} {value}", flush=True)


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

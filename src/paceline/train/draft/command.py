"""`paceline train drafter`: from a file of settings to a published drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.engine.resolve import pick_device
from paceline.models.checkpoint import read_config
from paceline.models.hub import resolve_model
from paceline.train.data.batches import SampleBatches
from paceline.train.draft import plan as planning
from paceline.train.draft.cache import open_cache
from paceline.train.draft.export import TargetFacts, export_drafter
from paceline.train.draft.features import FeatureSource, OnlineFeatures
from paceline.train.draft.initial import continued_drafter, new_drafter
from paceline.train.draft.shape import fit_spec, loss_shape
from paceline.train.draft.stage import (
    TargetFolder,
    compute_dtype,
    make_judge,
    open_samples,
    open_target,
    print_result,
)
from paceline.train.draft.task import DrafterTask, Export
from paceline.train.loop.distributed import Place, joined, wait
from paceline.train.loop.resume import checkpoint_steps
from paceline.train.loop.step import count_parameters
from paceline.train.loop.trainer import Outcome, Trainer
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.drafter import Drafter
from paceline.train.modules.load import load_train_target
from paceline.train.settings.base import load_yaml
from paceline.train.settings.drafter import DrafterSettings, FeatureSettings, SampleSettings
from paceline.train.settings.optim import OptimSettings

LONG_CONTEXT = "long_context"


@dataclass(frozen=True, slots=True)
class _Stage:
    """One run of the loop."""

    out: Path
    data: SampleSettings
    num_anchors: int
    optim: OptimSettings
    features: FeatureSettings


def build_drafter(settings: DrafterSettings, target: TargetFolder) -> Drafter:
    """The drafter to be trained, on the CPU: a published one, or a new one with random weights."""
    if settings.init_from is not None:
        return continued_drafter(resolve_model(settings.init_from, "drafter"), target.spec)
    return new_drafter(fit_spec(settings.drafter, target.spec, target.path), settings.optim.seed)


def run_drafter(
    settings: DrafterSettings, *, resume: bool = False, force: bool = False, device: str = "auto"
) -> Outcome:
    """Train by `settings`, all stages; the last one's outcome.

    Raises: ConfigError and the engine's own errors before anything is trained.
    """
    target = open_target(settings.target)
    drafter = build_drafter(settings, target)
    with joined(device) as place:
        torch.manual_seed(settings.optim.seed)
        if place.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        compute = compute_dtype(settings.optim, place.device)
        frozen = load_train_target(target.path, place.device, compute)
        for stage in _stages(settings):
            batches = _batches(settings, stage, target)
            task = _task(settings, stage, target, frozen, drafter, batches, place)
            again = resume and (
                stage.out == Path(settings.out) or bool(checkpoint_steps(stage.out / "checkpoints"))
            )
            outcome = Trainer(
                task, stage.optim, stage.out, place,
                config=settings.model_dump(mode="json"), resume=again, force=force,
            ).run()  # fmt: skip
    return outcome


def _stages(settings: DrafterSettings) -> list[_Stage]:
    out = Path(settings.out)
    stages = [_Stage(out, settings.data, settings.num_anchors, settings.optim, settings.features)]
    if settings.long_context is not None:
        long = settings.long_context
        stages.append(_Stage(out / LONG_CONTEXT, long.data, long.num_anchors, long.optim, FeatureSettings()))
    return stages


def _batches(settings: DrafterSettings, stage: _Stage, target: TargetFolder) -> SampleBatches:
    served = None if settings.evaluate is None else settings.evaluate.thinking
    return open_samples(stage.data, target, stage.optim, served)


def _task(
    settings: DrafterSettings,
    stage: _Stage,
    target: TargetFolder,
    frozen: TrainTarget,
    drafter: Drafter,
    batches: SampleBatches,
    place: Place,
) -> DrafterTask:
    device = place.device
    loss = loss_shape(settings.loss, drafter.spec.block_size)
    online = OnlineFeatures(frozen, drafter.spec.target_layer_ids, hidden=loss.kind == "kl")
    stored: FeatureSource | None = None
    if stage.features.mode == "cached":
        assert stage.features.folder is not None
        folder = Path(stage.features.folder)
        if place.first:
            open_cache(folder, target.path, online, batches, stage.features.max_gib, device)
        wait(place)
        stored = open_cache(folder, target.path, online, batches, stage.features.max_gib, device)
    return DrafterTask(
        drafter, frozen, batches, online, loss,
        num_anchors=stage.num_anchors,
        head_rows=settings.loss.head_rows,
        device=device,
        compute=compute_dtype(stage.optim, device),
        export=_exporter(settings, target, frozen, device),
        judge=make_judge(settings.evaluate, target.path, device, "dflash") if place.first else None,
        stored=stored,
    )  # fmt: skip


def _exporter(
    settings: DrafterSettings, target: TargetFolder, frozen: TrainTarget, device: torch.device
) -> Export:
    facts = TargetFacts(
        name=settings.target,
        architectures=tuple(read_config(target.path).get("architectures") or ()),
        num_layers=target.spec.num_layers,
        eos_ids=target.spec.eos_ids,
        tables=lambda: {
            "embed_tokens.weight": frozen.embed(torch.arange(frozen.vocab_size, device=device)),
            "lm_head.weight": frozen.head_weight,
        },
    )
    dtype = getattr(torch, settings.export.dtype)

    def export(module: nn.Module, folder: Path) -> None:
        assert isinstance(module, Drafter)
        export_drafter(module, facts, folder, settings.export.formats, dtype)

    return export


def plan_drafter(settings: DrafterSettings, device: str) -> dict[str, Any]:
    """What `run_drafter` will take, stage by stage; loads no weight of the target."""
    target, place = open_target(settings.target), pick_device(device)
    spec = build_drafter(settings, target).spec
    parameters = count_parameters(Drafter(spec).parameters())
    stages: dict[str, Any] = {}
    for stage in _stages(settings):
        batches, rows, size = _batches(settings, stage, target), stage.data.rows, spec.block_size
        blocks = rows * stage.num_anchors
        kept = 5 * spec.hidden_size + 3 * spec.num_heads * spec.head_dim + 3 * spec.intermediate_size
        work = planning.batch_work(
            target, parameters, rows, stage.data.length, blocks * size, blocks * (size - 1),
            teacher=settings.loss.kind == "kl",
        )  # fmt: skip
        stages[LONG_CONTEXT if stages else "first"] = {
            "data": planning.data_facts(batches),
            "memory_gib": planning.memory_gib(
                target, parameters, kept, settings.loss.head_rows, spec.num_layers * blocks * size
            ),
            **planning.time_facts(stage.optim, batches, work, place, compute_dtype(stage.optim, place)),
        }
    return {
        "settings": settings.model_dump(mode="json"),
        "drafter": {
            "parameters": parameters,
            "mask_token_id": spec.mask_token_id,
            "target_layer_ids": list(spec.target_layer_ids),
        },
        "target_parameters": planning.target_parameters(target),
        "device": place.type,
        "stages": stages,
    }


def run(config: Path, *, plan: bool, as_json: bool, resume: bool, force: bool, device: str) -> int:
    """The body of the command; 0 on success."""
    settings = load_yaml(config, DrafterSettings)
    if plan:
        print_result(plan_drafter(settings, device), as_json)
    else:
        outcome = run_drafter(settings, resume=resume, force=force, device=device)
        print_result(outcome.as_json(), as_json)
    return 0

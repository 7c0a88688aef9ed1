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
from paceline.models.spec import DrafterSpec
from paceline.train.data.batches import SampleBatches
from paceline.train.draft import plan as planning
from paceline.train.draft.cache import cache_bytes, open_cache
from paceline.train.draft.export import TargetFacts, check_formats, export_drafter
from paceline.train.draft.features import FeatureSource, OnlineFeatures
from paceline.train.draft.initial import continued_drafter, continued_spec, new_drafter
from paceline.train.draft.shape import check_positions, fit_spec, loss_shape, mask_text, warn_of_written_mask
from paceline.train.draft.stage import TargetFolder, make_judge, open_samples, open_target
from paceline.train.draft.task import DrafterTask, Export
from paceline.train.loop.distributed import Place, joined, wait
from paceline.train.loop.outputs import check_folder
from paceline.train.loop.plan import Work, layer_activations, make_plan, show
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
    section: str
    """Where its data stand in the settings."""
    data: SampleSettings
    num_anchors: int
    optim: OptimSettings
    features: FeatureSettings


def drafter_spec(settings: DrafterSettings, target: TargetFolder) -> DrafterSpec:
    """The numbers of the drafter to be trained; reads headers alone."""
    if settings.init_from is not None:
        spec = continued_spec(resolve_model(settings.init_from, "drafter"), target.spec)
    else:
        spec = fit_spec(settings.drafter, target.spec, target.path)
    check_formats(spec, settings.export.formats)
    return spec


def build_drafter(settings: DrafterSettings, target: TargetFolder) -> Drafter:
    """The drafter to be trained, on the CPU: a published one, or a new one with random weights."""
    spec = drafter_spec(settings, target)
    if settings.init_from is not None:
        return continued_drafter(resolve_model(settings.init_from, "drafter"), target.spec)
    return new_drafter(spec, settings.optim.seed)


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
        for stage in _stages(settings):
            kept = _activations(settings, stage, target, drafter.spec, place.device)
            planning.check_room(target, stage.optim, drafter, kept, place.device)
        compute = settings.optim.compute(place.device)
        frozen = load_train_target(target.path, place.device, compute)
        for stage in _stages(settings):
            batches = _batches(settings, stage, target, drafter.spec)
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
    stages = [_Stage(out, "data", settings.data, settings.num_anchors, settings.optim, settings.features)]
    if settings.long_context is not None:
        long = settings.long_context
        place, section, online = out / LONG_CONTEXT, f"{LONG_CONTEXT}.data", FeatureSettings()
        stages.append(_Stage(place, section, long.data, long.num_anchors, long.optim, online))
    return stages


def _batches(
    settings: DrafterSettings, stage: _Stage, target: TargetFolder, spec: DrafterSpec
) -> SampleBatches:
    served = None if settings.evaluate is None else settings.evaluate.thinking
    batches = open_samples(stage.data, target, stage.optim, served, stage.section)
    check_positions(settings, spec, stage.data.length, f"{stage.section}.length")
    warn_of_written_mask(batches, spec.mask_token_id, Path(stage.data.path))
    return batches


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
        compute=stage.optim.compute(device),
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


def plan_drafter(settings: DrafterSettings, device: torch.device) -> dict[str, dict[str, Any]]:
    """What `run_drafter` will take, stage by stage; loads no weight of the target."""
    target = open_target(settings.target)
    with torch.device("meta"):
        drafter = Drafter(drafter_spec(settings, target))
    make_judge(settings.evaluate, target.path, device, "dflash")  # its prompts can be read
    return {
        LONG_CONTEXT if number else "first": _plan_stage(settings, stage, target, drafter, device)
        for number, stage in enumerate(_stages(settings))
    }


def _plan_stage(
    settings: DrafterSettings, stage: _Stage, target: TargetFolder, drafter: Drafter, device: torch.device
) -> dict[str, Any]:
    spec, optim, batches = drafter.spec, stage.optim, _batches(settings, stage, target, drafter.spec)
    compute, count = optim.compute(device), count_parameters(drafter.parameters())
    tokens, blocks = stage.data.rows * stage.data.length, stage.data.rows * stage.num_anchors
    rows = blocks * spec.block_size
    activations = _activations(settings, stage, target, spec, device)
    plan = make_plan(
        "train drafter",
        _resolved(settings, spec),
        optim,
        module=drafter,
        work=Work(tokens, activations, batches.steps_per_epoch()),
        out=stage.out,
        device=device,
        frozen=planning.frozen_target(target, compute),
    )
    cost = planning.arithmetic(
        target, tokens, count, rows, blocks * (spec.block_size - 1), teacher=settings.loss.kind == "kl"
    )
    plan = planning.with_estimate(plan, batches, cost, optim.gradient_accumulation, device)
    plan["data"]["mask_token"] = mask_text(spec.mask_token_id, target.path)
    if stage.features.mode == "cached":
        width = spec.hidden_size * (len(spec.target_layer_ids) + (settings.loss.kind == "kl"))
        plan["data"]["feature_cache_gib"] = cache_bytes(batches.num_tokens, width) / 2**30
    return plan


def _activations(
    settings: DrafterSettings, stage: _Stage, target: TargetFolder, spec: DrafterSpec, device: torch.device
) -> int:
    """Bytes of a batch's activations, estimated."""
    blocks, mixer = stage.data.rows * stage.num_anchors, 2 * (spec.num_heads + spec.kv_heads) * spec.head_dim
    layers = layer_activations(
        blocks * spec.block_size, spec.num_layers, spec.hidden_size, spec.intermediate_size, mixer,
        stage.optim.compute(device),
    )  # fmt: skip
    guesses = blocks * (spec.block_size - 1)
    return layers + planning.logit_bytes(target, min(guesses, settings.loss.head_rows))


def _resolved(settings: DrafterSettings, spec: DrafterSpec) -> dict[str, Any]:
    """The settings, with what the target or the drafter that is continued decides."""
    values = settings.model_dump(mode="json")
    values["drafter"] = planning.shape_of(spec)
    if settings.loss.kind != "dpace":
        values["loss"]["decay_gamma"] = loss_shape(settings.loss, spec.block_size).gamma
    return values


def run(config: Path, *, plan: bool, as_json: bool, resume: bool, force: bool, device: str) -> int:
    """The body of the command; 0 on success."""
    settings = load_yaml(config, DrafterSettings)
    check_folder(Path(settings.out))
    if plan:
        planning.show_plans(plan_drafter(settings, pick_device(device)), as_json)
    else:
        show(run_drafter(settings, resume=resume, force=force, device=device).as_json(), as_json)
    return 0

"""`paceline train mtp`: from a file of settings to a target with a head of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.engine.resolve import pick_device
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.models.hub import resolve_model
from paceline.models.quantized import as_plain
from paceline.models.qwen3_5_config import MTP_PREFIX
from paceline.models.registry import read_mtp_spec
from paceline.models.spec import MTPSpec
from paceline.train.draft import plan as planning
from paceline.train.draft.features import OnlineFeatures
from paceline.train.draft.losses import LossShape
from paceline.train.draft.stage import TargetFolder, make_judge, open_samples, open_target
from paceline.train.draft.task import Export, Judge
from paceline.train.head.export import export_head, export_model, link_model
from paceline.train.head.task import HeadTask
from paceline.train.loop.distributed import Place
from paceline.train.loop.outputs import check_folder
from paceline.train.loop.plan import Work, layer_activations, make_plan, show
from paceline.train.loop.step import count_parameters
from paceline.train.loop.trainer import Outcome, train
from paceline.train.modules.load import load_train_target
from paceline.train.modules.mtp import MTPHead, head_spec
from paceline.train.settings.base import load_yaml
from paceline.train.settings.drafter import LossSettings
from paceline.train.settings.head import HeadSettings


def check_kind(target: TargetFolder) -> None:
    """Raises: UnsupportedModelError for a target whose kind has no head."""
    if not target.spec.linear_layers:
        raise UnsupportedModelError(
            f"{target.path}: only hybrid targets (qwen3_5) have a multi-token head; use `paceline train "
            "drafter`"
        )


def resolved(settings: HeadSettings, target: TargetFolder) -> HeadSettings:
    """The settings with the form that is written, which follows the target where none is given.

    Raises: ConfigError for a copy of a quantised target, whose files the head's tensors do not suit.
    """
    quantised, form = target.spec.quantization is not None, settings.export.form
    if form == "model" and quantised:
        raise ConfigError(
            f"{target.path} is quantised: set export.form: head, and graft it with `paceline graft-mtp`",
            key="export.form",
        )
    export = settings.export.model_copy(update={"form": form or ("head" if quantised else "model")})
    return settings.model_copy(update={"export": export})


def next_command(settings: HeadSettings, target: TargetFolder) -> str:
    """What makes a served model of a head that was written alone."""
    last = Path(settings.out) / "last"
    return (
        f"{last} holds the head alone: `paceline graft-mtp {last} {target.path} --out DIR` puts it into the "
        f"target, `paceline quantize MODEL --mtp {last}` into one that is quantised anew"
    )


def build_head(settings: HeadSettings, target: TargetFolder) -> MTPHead:
    """The head to be trained, on the CPU: another model's, or a new one with random weights.

    Raises: UnsupportedModelError for a target whose kind has no head, PairingError for a head that does not
    fit.
    """
    check_kind(target)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(settings.optim.seed)
        head = MTPHead(head_spec(target.spec))
    if settings.init_from is None:
        return head
    folder = resolve_model(settings.init_from)
    read_mtp_spec(folder, target.spec)
    checkpoint = as_plain(Checkpoint.open(folder))
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(checkpoint.weight(MTP_PREFIX + name))
    return head


def head_loss(settings: LossSettings) -> LossShape:
    """The loss of a chain of guesses: alike for all of them, unless a gamma or dpace says otherwise."""
    return LossShape(settings.kind, settings.decay_gamma, settings.dpace_alpha)


def run_head(
    settings: HeadSettings, *, resume: bool = False, force: bool = False, device: str = "auto"
) -> Outcome:
    """Train by `settings`. Raises: ConfigError and the engine's own errors before anything is trained."""
    target = open_target(settings.target)
    settings = resolved(settings, target)
    head = build_head(settings, target)
    config = settings.model_dump(mode="json")
    outcome = train(
        lambda place: _task(settings, target, head, place), settings.optim, Path(settings.out),
        device=device, config=config, resume=resume, force=force,
    )  # fmt: skip
    if settings.export.form == "head" and os.environ.get("RANK", "0") == "0":
        print(f"paceline: {next_command(settings, target)}", file=sys.stderr, flush=True)
    return outcome


def _task(settings: HeadSettings, target: TargetFolder, head: MTPHead, place: Place) -> HeadTask:
    planning.check_room(
        target, settings.optim, head, _activations(settings, target, head.spec, place.device), place.device
    )
    compute = settings.optim.compute(place.device)
    frozen = load_train_target(target.path, place.device, compute)
    served = None if settings.evaluate is None else settings.evaluate.thinking
    return HeadTask(
        head,
        frozen,
        open_samples(settings.data, target, settings.optim, served),
        OnlineFeatures(frozen, (), hidden=True),
        head_loss(settings.loss),
        steps=settings.steps,
        num_anchors=settings.num_anchors,
        head_rows=settings.loss.head_rows,
        device=place.device,
        compute=compute,
        export=_exporter(settings, target),
        judge=_judge(settings, target, place) if place.first else None,
    )


def _exporter(settings: HeadSettings, target: TargetFolder) -> Export:
    dtype = getattr(torch, settings.export.dtype)

    def export(module: nn.Module, folder: Path) -> None:
        assert isinstance(module, MTPHead)
        write = export_model if settings.export.form == "model" else export_head
        write(module, target.path, folder, dtype)

    return export


def _judge(settings: HeadSettings, target: TargetFolder, place: Place) -> Judge | None:
    whole = make_judge(settings.evaluate, target.path, place.device, "mtp", settings.steps)
    if whole is None or settings.export.form == "model":
        return whole

    def judge(folder: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as name:
            link_model(folder, target.path, Path(name))
            return whole(Path(name))

    return judge


def plan_head(settings: HeadSettings, device: torch.device) -> dict[str, Any]:
    """What `run_head` will take; loads no weight of the target."""
    target, optim = open_target(settings.target), settings.optim
    check_kind(target)
    settings = resolved(settings, target)
    make_judge(settings.evaluate, target.path, device, "mtp")  # its prompts can be read
    if settings.init_from is not None:
        read_mtp_spec(resolve_model(settings.init_from), target.spec)
    with torch.device("meta"):
        head = MTPHead(head_spec(target.spec))
    spec, batches, compute = (
        head.spec,
        open_samples(settings.data, target, optim, None),
        optim.compute(device),
    )
    tokens, guesses, rows = _sizes(settings)
    plan = make_plan(
        "train mtp",
        settings.model_dump(mode="json"),
        optim,
        module=head,
        work=Work(tokens, _activations(settings, target, spec, device), batches.steps_per_epoch()),
        out=Path(settings.out),
        device=device,
        frozen=planning.frozen_target(target, compute),
    )
    count = count_parameters(head.parameters())
    cost = planning.arithmetic(target, tokens, count, rows, guesses, teacher=settings.loss.kind == "kl")
    return planning.with_estimate(plan, batches, cost, optim.gradient_accumulation, device)


def _sizes(settings: HeadSettings) -> tuple[int, int, int]:
    """Tokens of a batch, guesses, and rows that the head works on."""
    tokens = settings.data.rows * settings.data.length
    guesses = settings.data.rows * settings.num_anchors * settings.steps
    # At all positions the head makes keys and values alone, about a third of its work.
    return tokens, guesses, guesses + tokens // 3


def _activations(settings: HeadSettings, target: TargetFolder, spec: MTPSpec, device: torch.device) -> int:
    """Bytes of a batch's activations, estimated."""
    _, guesses, rows = _sizes(settings)
    mixer, compute = (3 * spec.num_heads + 2 * spec.kv_heads) * spec.head_dim, settings.optim.compute(device)
    layer = layer_activations(rows, 1, spec.hidden_size, spec.intermediate_size, mixer, compute)
    return layer + planning.logit_bytes(target, min(guesses, settings.loss.head_rows))


def run(config: Path, *, plan: bool, as_json: bool, resume: bool, force: bool, device: str) -> int:
    """The body of the command; 0 on success."""
    settings = load_yaml(config, HeadSettings)
    check_folder(Path(settings.out))
    if plan:
        planning.show_plans({"first": plan_head(settings, pick_device(device))}, as_json)
    else:
        show(run_head(settings, resume=resume, force=force, device=device).as_json(), as_json)
    return 0

"""`paceline train target`: from a file of settings to a hybrid that the engine serves."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from paceline.engine.resolve import pick_device
from paceline.errors import ConfigError
from paceline.models.checkpoint import Checkpoint
from paceline.models.hub import resolve_model
from paceline.models.quantized import as_plain
from paceline.models.registry import read_target_spec
from paceline.models.spec import TargetSpec
from paceline.train.draft.plan import timed
from paceline.train.loop.distributed import Place
from paceline.train.loop.memory import check_memory
from paceline.train.loop.outputs import check_folder
from paceline.train.loop.plan import (
    Frozen,
    Work,
    estimate_memory,
    layer_activations,
    make_plan,
    show,
    show_plan,
)
from paceline.train.loop.step import count_parameters
from paceline.train.loop.trainer import Outcome, train
from paceline.train.modules.four_bits import read_in_four_bits
from paceline.train.modules.hybrid import Hybrid
from paceline.train.modules.initial import init_weights
from paceline.train.modules.load import load_train_target
from paceline.train.settings.base import load_yaml
from paceline.train.settings.target import NewTokenizer, TargetSettings
from paceline.train.targets import cache
from paceline.train.targets.corpus import Passage, passages
from paceline.train.targets.export import WriteTokenizer, copied_tokenizer, export_target, new_tokenizer
from paceline.train.targets.loops import read_loops
from paceline.train.targets.rows import PackedRows, Tokens
from paceline.train.targets.shape import spec_of
from paceline.train.targets.task import TargetTask
from paceline.train.targets.tokenizer import eos_ids, read_tokenizer, train_tokenizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything but weights."""

    spec: TargetSpec
    write_tokenizer: WriteTokenizer
    rows: PackedRows
    held_out: dict[str, PackedRows]


def prepare(settings: TargetSettings) -> Prepared:
    """Read and encode the sources, pack them, fix the model's sizes.

    Raises: ConfigError for what is missing or does not fit together.
    """
    source = None if settings.init_from is None else resolve_model(settings.init_from)
    cached = None if settings.cache is None else Path(settings.cache)
    found = [] if cached is not None and cached.exists() else list(passages(settings))
    tokenizer, write = _tokenizer(settings, source, found)
    spec = _spec(settings, source, tokenizer)
    parts = _parts(settings, cached, found, tokenizer)
    if not len(parts["train"].sizes):
        raise ConfigError("every document and dialogue is held out: lower held_out.share", key="held_out")
    seed, learnt = settings.optim.seed, parts["train"]
    if settings.loops is not None:
        assert source is not None
        loops = read_loops(settings.loops, source, settings.length, tokenizer.get_vocab_size())
        learnt = learnt.and_avoid(loops, settings.loops.kind, settings.loops.repeat)
    rows = PackedRows(learnt, settings.rows, settings.prompt_weight, seed)
    held_out = {kind: PackedRows(parts["held_out"], 1, 0.0, seed, kind) for kind in parts["held_out"].kinds}
    return Prepared(spec, write, rows, held_out)


def _parts(
    settings: TargetSettings, cached: Path | None, found: list[Passage], tokenizer: Tokenizer
) -> dict[str, Tokens]:
    """Both splits, encoded now or before."""
    described = {} if cached is None else cache.describe(settings, tokenizer)
    if cached is not None and cached.exists():
        return cache.load(cached, described, settings.length)
    parts = {
        split: Tokens((p for p in found if p.split == split), tokenizer, settings.length)
        for split in cache.SPLITS
    }
    if cached is not None:
        cache.save(cached, parts, described)
    return parts


def run_target(
    settings: TargetSettings, *, resume: bool = False, force: bool = False, device: str = "auto"
) -> Outcome:
    """Train by `settings`.

    Raises: ConfigError and the engine's own errors before anything is trained.
    """
    ready = prepare(settings)

    def make(place: Place) -> TargetTask:
        return _task(settings, ready, place)

    return train(
        make, settings.optim, Path(settings.out),
        device=device, config=settings.model_dump(mode="json"), resume=resume, force=force,
    )  # fmt: skip


def plan_target(settings: TargetSettings, device: str) -> dict[str, Any]:
    """What `run_target` will take; reads and encodes the sources, loads no weight."""
    ready, place = prepare(settings), pick_device(device)
    module, work, frozen = _planned(settings, ready, place)
    made = make_plan(
        "train target", settings.model_dump(mode="json"), settings.optim,
        module=module, work=work, out=Path(settings.out),
        device=place, frozen=frozen,
    )  # fmt: skip
    data = {
        "tokens_by_kind": ready.rows.tokens.count(),
        "held_out_rows_by_kind": {kind: len(rows.packed) for kind, rows in ready.held_out.items()},
    }
    # Every weight is multiplied with every token: once forward, twice backward; a teacher forward alone.
    cost = 2.0 * work.tokens * (3 * count_parameters(module.parameters()) + frozen.parameters)
    return timed({**made, "data": data}, settings.optim.gradient_accumulation * cost, place)


def _planned(settings: TargetSettings, ready: Prepared, place: torch.device) -> tuple[Hybrid, Work, Frozen]:
    """The model without weights, what a batch costs, and the teacher."""
    compute, spec, tokens = settings.optim.compute(place), ready.spec, settings.rows * settings.length
    frozen = Frozen()
    if settings.distill is not None:
        frozen = _frozen(resolve_model(settings.distill.teacher))
    with torch.device("meta"):
        module = Hybrid(spec, compute)
    full = 2 * spec.num_heads * spec.head_dim + 2 * spec.kv_heads * spec.head_dim
    mixer = 2 * max(full, spec.conv_dim + spec.num_value_heads * spec.value_dim)
    kept = layer_activations(
        tokens, spec.num_layers, spec.hidden_size, spec.intermediate_size, mixer, compute
    )
    logits = min(tokens, settings.head_rows) * spec.vocab_size * 4 * 3
    return module, Work(tokens, kept + logits, len(ready.rows)), frozen


def run(config: Path, *, plan: bool, as_json: bool, resume: bool, force: bool, device: str) -> int:
    """The body of the command; 0 on success."""
    settings = load_yaml(config, TargetSettings)
    check_folder(Path(settings.out))
    if plan:
        show_plan(plan_target(settings, device), as_json)
    else:
        show(run_target(settings, resume=resume, force=force, device=device).as_json(), as_json)
    return 0


def _task(settings: TargetSettings, ready: Prepared, place: Place) -> TargetTask:
    module, work, frozen = _planned(settings, ready, place.device)
    memory = estimate_memory(settings.optim, module, work.activations, place.device, frozen)
    check_memory(memory["total"], place.device)
    compute = settings.optim.compute(place.device)
    if settings.init_from is None:
        model = Hybrid(ready.spec, compute)
        init_weights(model, ready.spec.num_layers)
    else:
        loaded = load_train_target(resolve_model(settings.init_from), "cpu", compute).requires_grad_(True)
        assert isinstance(loaded, Hybrid)
        model = loaded
    if settings.four_bits is not None:
        read_in_four_bits(model, settings.four_bits)
    teacher = None
    if settings.distill is not None:
        teacher = load_train_target(resolve_model(settings.distill.teacher), place.device, compute)
        if teacher.vocab_size < ready.spec.vocab_size:
            raise ConfigError(
                f"distill.teacher has {teacher.vocab_size} ids, fewer than the student's "
                f"{ready.spec.vocab_size}: their tokenizers differ",
                key="distill.teacher",
            )
    return TargetTask(
        model, ready.rows, ready.held_out,
        head_rows=settings.head_rows,
        device=place.device,
        export=lambda module, folder: export_target(module, ready.write_tokenizer, folder),
        held_out_rows=settings.held_out.rows,
        teacher=teacher,
        distill=settings.distill,
        four_bits=settings.four_bits,
    )  # fmt: skip


def _tokenizer(
    settings: TargetSettings, source: Path | None, found: list[Passage]
) -> tuple[Tokenizer, WriteTokenizer]:
    wanted = settings.tokenizer
    if isinstance(wanted, NewTokenizer):
        made = train_tokenizer((p.text for p in found if p.split == "train"), wanted)
        return made, new_tokenizer(made, settings.model.max_position_embeddings)
    folder = Path(wanted) if wanted is not None else source
    assert folder is not None
    return read_tokenizer(folder), copied_tokenizer(folder)


def _spec(settings: TargetSettings, source: Path | None, tokenizer: Tokenizer) -> TargetSpec:
    tokens = tokenizer.get_vocab_size()
    if source is None:
        spec = spec_of(settings.model, tokens, eos_ids(tokenizer))
    else:
        spec = read_target_spec(source)
        if not spec.num_key_heads or spec.rope.yarn or spec.rope.llama3:
            raise ConfigError(f"init_from: {source} is no hybrid with plain positions", key="init_from")
        if spec.mtp_layers:
            warnings.warn(f"{source}: its multi-token head is not carried over: train one anew", stacklevel=2)
        if settings.length > spec.max_position:
            raise ConfigError(f"length exceeds the {spec.max_position} positions of init_from", key="length")
    if tokens > spec.vocab_size:
        raise ConfigError(
            f"the tokenizer names {tokens} ids, the table has {spec.vocab_size} rows: raise "
            "model.vocab_size, or leave it out",
            key="model.vocab_size",
        )
    return spec


def _frozen(folder: Path) -> Frozen:
    """A teacher's parameters by its sizes alone; in memory they are fp32."""
    count = sum(math.prod(info.shape) for info in as_plain(Checkpoint.open(folder)).tensors.values())
    return Frozen(count, 4 * count)

"""What a stage of drafter or head training needs around its module: samples, target, warnings, judging."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from paceline.config.model import Device
from paceline.errors import ConfigError
from paceline.models.hub import resolve_model
from paceline.models.registry import read_target_spec
from paceline.models.spec import TargetSpec
from paceline.train.data.batches import SampleBatches
from paceline.train.data.produce import model_fingerprint
from paceline.train.data.shards import Sample, foreign_id, read_meta, read_samples, shard_files
from paceline.train.draft.task import Judge
from paceline.train.evaluate.acceptance import held_out_prompts, serving_acceptance
from paceline.train.settings.drafter import AcceptanceSettings, SampleSettings
from paceline.train.settings.optim import OptimSettings

_MODE_SHARE = 0.1
"""Fewer answers than this in the mode that is served, and the drafter has not learnt it."""


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """The target's folder and numbers."""

    path: Path
    spec: TargetSpec


def open_target(name: str) -> TargetFolder:
    """Raises: the errors with which the engine refuses a model."""
    path = resolve_model(name)
    return TargetFolder(path, read_target_spec(path))


def open_samples(
    settings: SampleSettings,
    target: TargetFolder,
    optim: OptimSettings,
    served_thinking: bool | None,
    section: str = "data",
) -> SampleBatches:
    """The samples of a stage, packed; warns where they were written in another mode than is served.

    served_thinking: the mode of held-out prompts; None: nobody said. section: where `settings` stand in their
    file. Raises: ConfigError for samples of another vocabulary, or rows longer than the target has positions,
    and a folder without a sample.
    """
    folder = Path(settings.path)
    meta = read_meta(folder)
    vocab, writer = meta.get("vocab_size"), meta.get("model_fingerprint")
    if vocab not in (None, target.spec.vocab_size):
        raise ConfigError(
            f"{folder} holds ids of a vocabulary of {vocab}, the target has {target.spec.vocab_size}: make "
            "answers of this target with `paceline train data`",
            key=f"{section}.path",
        )
    if writer not in (None, model_fingerprint(target.path)):
        warnings.warn(
            f"{folder}: these answers were written by another model than {target.path}, or it was changed "
            "since: a drafter learns best from the target's own",
            stacklevel=2,
        )
    if settings.length > target.spec.max_position:
        raise ConfigError(
            f"{section}.length = {settings.length} is more than the target's {target.spec.max_position} "
            "positions: lower it",
            key=f"{section}.length",
        )
    modes: Counter[bool] = Counter()

    def counted() -> Iterator[Sample]:
        for sample in islice(read_samples(folder), settings.limit):
            modes[sample.thinking] += 1
            _check_ids(sample, target.spec.vocab_size, folder, section)
            yield sample
        if not modes:
            raise ConfigError(
                f"{_emptiness(folder)}: write answers with `paceline train data`", key=f"{section}.path"
            )

    # A pad is read by nobody; any id of the table will do.
    batches = SampleBatches(counted(), rows=settings.rows, length=settings.length, pad_id=0, seed=optim.seed)
    if served_thinking is not None:
        warn_of_other_mode(modes, served_thinking, folder)
    return batches


def _emptiness(folder: Path) -> str:
    """Which file of a folder without a sample is to be looked at."""
    found = shard_files(folder)
    if not found:
        return f"{folder} holds no whole shard"
    names = found[0].name if len(found) == 1 else f"{found[0].name} to {found[-1].name}"
    return f"{folder} holds no sample ({names}: empty)"


def _check_ids(sample: Sample, vocab_size: int, folder: Path, section: str) -> None:
    """A GPU would answer an id outside the table with a fault that names nothing."""
    wrong = foreign_id(sample, vocab_size)
    if wrong is not None:
        raise ConfigError(
            f"{folder}: sample {sample.id} holds the id {wrong}, the target has {vocab_size}: make answers "
            "of this target with `paceline train data`",
            key=f"{section}.path",
        )


def warn_of_other_mode(modes: Counter[bool], served_thinking: bool, folder: Path) -> None:
    """A drafter accepts little in a mode (reasoning or not) that it has not seen: the most frequent cause of
    low acceptance in reports about published drafters. modes: samples with and without thinking."""
    count, total = modes[served_thinking], modes.total()
    if count < _MODE_SHARE * total:
        mode = "on" if served_thinking else "off"
        warnings.warn(
            f"{folder}: {count} of {total} answers were written with thinking {mode}, but held-out "
            "prompts ask for it (evaluate.thinking): expect low acceptance; make answers in that mode",
            stacklevel=2,
        )


def make_judge(
    settings: AcceptanceSettings | None,
    target: Path,
    device: torch.device,
    method: str,
    num_speculative_tokens: int | None = None,
) -> Judge | None:
    """How an exported folder is measured; None without held-out prompts, which are read here.

    Of a ``dflash`` drafter the folder is the drafter, of ``mtp`` it is the whole model.
    """
    if settings is None:
        return None
    prompts = held_out_prompts(target, settings)
    kind: Device = "cuda" if device.type == "cuda" else "cpu"

    def judge(folder: Path) -> dict[str, float]:
        # Without the text's own copies: what is measured is what was trained.
        drafts: dict[str, Any] = {"method": method, "prompt_lookup": False}
        if method == "dflash":
            drafts["model"] = str(folder)
        if num_speculative_tokens is not None:
            drafts["num_speculative_tokens"] = num_speculative_tokens
        measured = serving_acceptance(
            target if method == "dflash" else folder,
            drafts,
            prompts,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            device=kind,
            max_num_seqs=settings.max_num_seqs,
        )
        return measured.figures()

    return judge

"""The body of `paceline train data`: plan it, or do it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.engine.assemble import assemble
from paceline.engine.budget import forecast
from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import ConfigError
from paceline.train.data.answers import Answers, Writer, jobs, params_of
from paceline.train.data.filters import DROPPED_FILE
from paceline.train.data.held_out import Selection, select, selected
from paceline.train.data.produce import produce, resolve_engine
from paceline.train.data.prompts import PromptEncoder
from paceline.train.data.rollout_answers import RolloutAnswers
from paceline.train.data.shards import META_FILE, lock, write_json
from paceline.train.data.trial import run_trial
from paceline.train.loop.outputs import check_folder
from paceline.train.loop.plan import show
from paceline.train.modules.load import load_train_target
from paceline.train.settings.base import load_yaml
from paceline.train.settings.data import DataSettings

if TYPE_CHECKING:
    from paceline.engine.resolve import Resolved

SUMMARY_FILE = "summary.json"


def run(
    config: Path,
    *,
    plan: bool = False,
    as_json: bool = False,
    resume: bool = False,
    force: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> int:
    """Answer the prompts that a settings file names; returns the exit code.

    plan: say what would be done, and how long it would take after a trial of at most 20 seconds; nothing is
    written. resume: go on in a folder that holds answers already. force: begin it anew.
    """
    settings = load_yaml(config, DataSettings)
    check_folder(Path(settings.out))
    if not plan:
        _check_out(Path(settings.out), resume, force)
    resolved = resolve_engine(settings, device)
    encoder = PromptEncoder(load_tokenizer(resolved.folder), settings.chat, settings.thinking)
    _say("reading prompts")
    selection = select(settings)
    _say(_selection_line(selection))
    if plan:
        show(plan_of(settings, selection, resolved, encoder), as_json)
        return 0
    if force:
        _clear(Path(settings.out))
    try:
        summary = produce(settings, selection, resolved, _writer(settings, resolved), encoder, _say)
    except KeyboardInterrupt:
        _say("stopped: --resume goes on from there")
        raise
    summary = {"prompts": dict(selection.counts), **summary}
    write_json(Path(settings.out) / SUMMARY_FILE, summary)
    show(summary, as_json)
    return 0


def plan_of(
    settings: DataSettings, selection: Selection, resolved: Resolved, encoder: PromptEncoder
) -> dict[str, Any]:
    """Resolved settings, prompts, memory of the engine, and a time estimate from a short trial."""
    engine = forecast(resolved)  # before the model is loaded: afterwards its own memory is missing
    answers = selection.counts["kept"] * encoder.answers_each * len(params_of(settings.sampling))
    return {
        "settings": settings.model_dump(mode="json"),
        "prompts": {**selection.counts, "by_category": dict(selection.categories)},
        "thinking_modes": ["asked"] if encoder.modes is None else [("off", "on")[m] for m in encoder.modes],
        "answers": answers,
        "tokens_at_most": answers * settings.sampling.max_tokens,
        "engine": {"model": engine["model"], "memory": engine["memory"]},
        "estimate": trial(settings, selection, _writer(settings, resolved), encoder, answers),
    }


def trial(
    settings: DataSettings, selection: Selection, answers: Writer, encoder: PromptEncoder, total: int
) -> dict[str, Any]:
    """Write the first answers for a while and throw them away; what the whole run takes at that pace."""
    found = run_trial(answers, jobs(selected(settings, selection), encoder, params_of(settings.sampling), ()))
    limit = settings.sampling.max_tokens
    return found.estimate(limit, total * found.mean_tokens(limit))


def _writer(settings: DataSettings, resolved: Resolved) -> Writer:
    """What answers: loads the model."""
    if settings.rollout is None:
        return Answers(assemble(resolved.config))
    device = resolved.device
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = load_train_target(resolved.folder, device, compute)
    tokenizer = load_tokenizer(resolved.folder)
    assert tokenizer is not None  # the encoder has asked
    vocab = min(tokenizer.size, target.vocab_size)
    length = resolved.max_model_len
    return RolloutAnswers(target, settings.rollout, settings.sampling, length, vocab)


def _check_out(out: Path, resume: bool, force: bool) -> None:
    assert not (resume and force), "one goes on, the other begins anew"
    stands = (out / META_FILE).exists()
    if stands and not (resume or force):
        raise ConfigError(f"{out} holds answers already: --resume goes on, --force begins anew", key="out")
    if resume and not stands:
        warnings.warn(f"--resume has no effect: {out} holds nothing yet", stacklevel=2)


def _clear(out: Path) -> None:
    """Remove what an earlier run has written, and nothing else. Raises ConfigError while one still writes."""
    if (out / META_FILE).exists():
        lock(out / META_FILE).close()
    names = [META_FILE, DROPPED_FILE, SUMMARY_FILE]
    for path in [*out.glob("shard-*.jsonl*"), *(out / name for name in names)]:
        path.unlink(missing_ok=True)


def _selection_line(selection: Selection) -> str:
    names = {
        "duplicate": "duplicates",
        "held_out": "held out",
        "near_held_out": "near a held-out one",
        "beyond_limit": "beyond the limit",
    }
    counts = selection.counts
    refused = [f"{counts[key]:,} {text}" for key, text in names.items() if counts[key]]
    line = f"{counts['read']:,} prompts read, {counts['kept']:,} to be answered"
    return f"{line} ({', '.join(refused)})" if refused else line


def _say(line: str) -> None:
    print(f"paceline: {line}", file=sys.stderr, flush=True)

"""The run behind `paceline train data`: from settings to a folder of samples, from wherever it stopped."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.cache import CacheConfig
from paceline.config.engine import EngineConfig
from paceline.config.model import Device, ModelConfig
from paceline.config.speculative import SpeculativeConfig
from paceline.engine.resolve import resolve
from paceline.engine.tokenizer import TOKENIZER_FILES
from paceline.train.data.answers import Writer, jobs, params_of
from paceline.train.data.filters import DROPPED_FILE, DropLog, reason_to_drop
from paceline.train.data.held_out import selected
from paceline.train.data.shards import Sample, ShardWriter, read_samples

if TYPE_CHECKING:
    from paceline.engine.resolve import Resolved
    from paceline.train.data.held_out import Selection
    from paceline.train.data.prompts import PromptEncoder
    from paceline.train.settings.data import DataSettings

LONG_PROMPT = 4096
"""Prompt tokens that there is room for where `max_model_len` is absent."""
_PIECE = 1 << 16
_KNOWN_FAILURES = 3  # are told one by one, the others only counted

Say = Callable[[str], None]


def resolve_engine(settings: DataSettings, device: Device) -> Resolved:
    """The engine that answers, decided from headers alone.

    Raises the typed errors of `paceline.errors` for what does not fit together.
    """
    engine, longest = settings.engine, settings.engine.max_model_len
    speculative = engine.speculative_config
    config = EngineConfig(
        model=ModelConfig(
            model=settings.model,
            dtype=engine.dtype,
            device=device,
            quantization=engine.quantization,
            quantized_weights=engine.quantized_weights,
            max_model_len=longest,
        ),
        cache=CacheConfig(num_blocks=engine.num_blocks),
        speculative=None if speculative is None else SpeculativeConfig.parse(speculative),
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        deterministic=engine.deterministic,
    )
    resolved = resolve(config)
    if longest is None:
        longest = min(resolved.spec.max_position, LONG_PROMPT + settings.sampling.max_tokens)
        model = config.model.model_copy(update={"max_model_len": longest})
        resolved = resolve(config.model_copy(update={"model": model}))
    return resolved


def describe_source(settings: DataSettings, resolved: Resolved, encoder: PromptEncoder) -> dict[str, Any]:
    """What `meta.json` says: whose answers these are and how they were drawn. Folders with another
    description are not added to; other prompts may be."""
    sampling = settings.sampling
    modes: dict[tuple[bool, ...] | None, str]
    modes = {(True,): "on", (False,): "off", (True, False): "both", None: "asked"}
    return {
        "format": 1,
        "model": settings.model,
        "model_fingerprint": model_fingerprint(resolved.folder),
        "tokenizer_fingerprint": tokenizer_fingerprint(resolved.folder),
        "vocab_size": resolved.spec.vocab_size,
        "dtype": str(resolved.spec.dtype).removeprefix("torch."),
        "chat": encoder.chat,
        "thinking": modes[encoder.modes],
        "temperature": list(sampling.temperatures),
        "n": sampling.n,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        **({"rollout": True} if settings.rollout else {}),
        "filters": settings.filters.model_dump(),
    }


def model_fingerprint(folder: Path) -> str:
    """A digest that tells one checkpoint from another, fine-tuned ones of the same shapes included: of
    config.json and of each weight file's size, first, middle and last 64 KiB."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in (0, size // 2, max(0, size - _PIECE)):
                file.seek(start)
                digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32]


def tokenizer_fingerprint(folder: Path) -> str:
    """A digest of the tokenizer's files and the chat template."""
    digest = hashlib.sha256()
    for name in (*TOKENIZER_FILES, "merges.txt", "chat_template.jinja"):
        if (folder / name).is_file():
            digest.update(name.encode() + b" " + (folder / name).read_bytes())
    return digest.hexdigest()[:32]


@dataclass(slots=True)
class _Report:
    """Lines of progress, one in `every` seconds."""

    say: Say
    every: float
    total: int
    standing: int
    last: float = 0.0

    def tell(self, answers: Writer, written: int, dropped: int) -> None:
        seconds = answers.seconds
        if seconds - self.last < self.every or not answers.finished:
            return
        self.last = seconds
        done = self.standing + answers.finished
        left = seconds / answers.finished * max(0, self.total - done)
        self.say(
            f"{done:,} of {self.total:,} answers, {answers.tokens / seconds:,.0f} tokens/s, "
            f"{duration(left)} left; {written:,} kept, {dropped:,} dropped"
        )


def duration(seconds: float) -> str:
    """Seconds in words that suit their size."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def produce(
    settings: DataSettings,
    selection: Selection,
    resolved: Resolved,
    answers: Writer,
    encoder: PromptEncoder,
    say: Say,
) -> dict[str, Any]:
    """Write what is not yet there, and return the summary of the whole folder.

    Every answer is on disk as soon as all before it are; a kill loses those that were in the works.
    """
    folder = Path(settings.out)
    meta = describe_source(settings, resolved, encoder)
    ways = params_of(settings.sampling)
    total = selection.counts["kept"] * encoder.answers_each * len(ways)
    failed: Counter[str] = Counter()
    with ShardWriter(folder, meta, settings.rows_per_shard) as writer:
        log = DropLog(folder)
        done = writer.done | log.done
        if done:
            say(f"{len(done):,} of {total:,} answers stand already")
        report = _Report(say, settings.report_every, total, len(done))
        try:
            for answer in answers.run(jobs(selected(settings, selection), encoder, ways, done)):
                if answer is not None and answer.sample is None:
                    _tell_failure(answer.job.id, answer.error, failed, say)
                elif answer is not None and answer.sample is not None:
                    _keep(answer.sample, settings, writer, log)
                report.tell(answers, writer.rows, len(log.done))
        finally:
            log.close()
        if writer.rows == 0:
            say("no answer was kept" + (f": {folder / DROPPED_FILE} has the reasons" if log.done else ""))
    this_run = {"answers": answers.finished, "tokens": answers.tokens, "seconds": round(answers.seconds, 3)}
    return {**summarise(folder, log), "failed": dict(failed), "this_run": this_run}


def _keep(sample: Sample, settings: DataSettings, writer: ShardWriter, log: DropLog) -> None:
    reason = reason_to_drop(sample, settings.filters)
    if reason is None:
        writer.write(sample)
    else:
        log.add(sample, reason)


def _tell_failure(name: str, error: Exception | None, failed: Counter[str], say: Say) -> None:
    if failed.total() < _KNOWN_FAILURES:
        say(f"{name} is left out: {error}")
    failed[type(error).__name__] += 1


def summarise(folder: Path, log: DropLog) -> dict[str, Any]:
    """Counts over all that stands in a folder of samples."""
    kinds: Counter[str] = Counter()
    rows = prompt_tokens = answer_tokens = cut = 0
    for sample in read_samples(folder):
        rows += 1
        prompt_tokens += len(sample.prompt_ids)
        answer_tokens += len(sample.answer_ids)
        cut += sample.finish == "length"
        kinds[f"{sample.category or 'none'}, {'thinking' if sample.thinking else 'plain'}"] += 1
    return {
        "answers": rows + len(log.done),
        "kept": rows,
        "dropped": dict(log.counts),
        "kept_by_kind": dict(sorted(kinds.items())),
        "kept_cut": cut,
        "prompt_tokens": prompt_tokens,
        "answer_tokens": answer_tokens,
        "dropped_tokens": log.tokens,
        "mean_answer_tokens": round(answer_tokens / rows, 1) if rows else None,
    }

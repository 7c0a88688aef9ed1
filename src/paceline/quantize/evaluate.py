"""What a quantised model lost against its base: divergence, agreement, perplexity, acceptance of drafts.

The base is read once, and its hidden states are kept in a temporary file; then the model, and the base with
one group of the model's weights at a time, are loaded one after another (see `quantize.divergence`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from paceline.cache.tensors import CacheShape
from paceline.config.model import Device
from paceline.engine.resolve import pick_device
from paceline.engine.teacher import teacher_forced_hidden
from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import CheckpointError, ConfigError
from paceline.models.base import TargetModel
from paceline.models.hub import resolve_model
from paceline.quantize.acceptance import Answers, Question, answer, check_drafts
from paceline.quantize.divergence import Compared, Head, HiddenStore, compare, joined
from paceline.quantize.evaluation import Evaluation, GroupKL
from paceline.quantize.stream import Progress
from paceline.quantize.substitute import Pair

WINDOW = 1024
"""Longest stretch of text that is read in one go; a longer text is cut."""
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """What is compared, and on what."""

    text: Path | None = None
    """A plain text; None: the questions and the base's greedy answers to them."""
    questions: Sequence[Question] = ()
    """What acceptance is measured on."""
    speculative: Mapping[str, Any] | None = None
    """As in `--speculative-config`; None: acceptance is not measured."""
    max_tokens: int = 64
    """Longest answer."""
    device: Device = "auto"
    by_layers: bool = True
    """Also find out what each group of layers costs; loads the model once a group."""


def evaluate(model: str, base: str, options: EvaluateOptions, progress: Progress | None = None) -> Evaluation:
    """Compare `model` with `base`: folders, hub ids or `demo`.

    Raises: PairingError where they are not of one shape, ConfigError for a text that cannot be read, and the
    errors of `LLM`.
    """
    folder, base_folder = resolve_model(model), resolve_model(base)
    pair = Pair(base_folder, folder, pick_device(options.device))
    if options.speculative is not None:
        for name in (base, model):
            check_drafts(name, options.speculative, options.device)
    written = None if options.text is None else _tokens_of(options.text, base_folder)
    before, after = _answers(model, base, options)
    windows = _windows([written] if written else before.sequences, pair)
    with tempfile.TemporaryFile() as file:
        work = _Work(pair, windows, cast(BinaryIO, file), progress)
        whole = work.against_base(pair.names, "the model")
        groups = list(_by_group(work)) if options.by_layers else []
    return Evaluation(
        model=model,
        base=base,
        device=pair.device.type,
        dtype=str(pair.spec.dtype).removeprefix("torch."),
        window=WINDOW,
        windows=[len(window) for window in windows],
        compared=whole,
        groups=groups,
        speculative=options.speculative,
        acceptance=(before.figures(), after.figures()) if options.speculative is not None else None,
    )


def _answers(model: str, base: str, options: EvaluateOptions) -> tuple[Answers, Answers]:
    """The base's and the model's answers; neither is loaded where nothing of it is needed."""
    nothing = Answers([])
    if options.speculative is None and options.text is not None:
        return nothing, nothing
    arguments = (options.questions, options.speculative, options.max_tokens, options.device)
    before = answer(base, *arguments)
    return before, nothing if options.speculative is None else answer(model, *arguments)


def _tokens_of(path: Path, base: Path) -> list[int]:
    tokenizer = load_tokenizer(base)
    if tokenizer is None:
        raise ConfigError(
            f"{base} has no tokenizer, so --text cannot be read; add tokenizer.json", key="text"
        )
    try:
        ids = tokenizer.encode(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}", key="text") from None
    if len(ids) < 2:
        raise ConfigError(f"{path} has {len(ids)} tokens; at least 2 are needed", key="text")
    return ids


def _windows(sequences: list[list[int]], pair: Pair) -> list[list[int]]:
    size = min(WINDOW, pair.spec.max_position)
    return [ids[i : i + size] for ids in sequences for i in range(0, len(ids), size)]


def _by_group(work: _Work) -> Iterator[GroupKL]:
    differing = set(work.pair.differing())
    groups = [(kind, name, differing & set(names)) for kind, name, names in work.pair.groups()]
    work.passes += sum(1 for _, _, names in groups if names)
    for kind, name, names in groups:
        kl = float(work.against_base(names, name).kl.mean()) if names else 0.0
        yield GroupKL(kind, name, len(names), kl)


@dataclass(slots=True)
class _Work:
    """The base's hidden states and head, and whatever is compared with them."""

    pair: Pair
    windows: list[list[int]]
    file: BinaryIO
    progress: Progress | None
    passes: int = 2
    """Readings of the whole text, done or to come."""
    _store: HiddenStore = field(init=False)
    _head: Head = field(init=False)
    _done: int = 0

    def __post_init__(self) -> None:
        spec = self.pair.spec
        self._store = HiddenStore(self.file, spec.hidden_size, spec.dtype)
        base = self.pair.load((), self._longest)
        for rows, _ in self._read(base, "the base"):
            self._store.append(rows)
        self._head = _logits(base)

    def against_base(self, chosen: Sequence[str] | set[str], title: str) -> Compared:
        """Compare the base that has the tensors `chosen` of the model with the base, over all windows."""
        target, first, parts = self.pair.load(chosen, self._longest), 0, []
        for rows, following in self._read(target, title):
            theirs = self._store.read(first, len(rows)).to(self.pair.device)
            parts.append(compare(self._head(theirs), target.logits(rows), following))
            first += len(rows)
        found = joined(parts)
        if not bool(found.kl.isfinite().all()):
            raise CheckpointError(
                f"{title}: distributions that are no numbers; look at the weights with `paceline inspect`"
            )
        return found

    @property
    def _longest(self) -> int:
        return max(len(window) for window in self.windows)

    def _read(self, target: TargetModel, title: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Hidden states [R, H] of all windows in order, with the tokens that follow (-1: none)."""
        shape = CacheShape.of(self.pair.spec, block_size=_BLOCK, num_drafts=0)
        total = sum(len(window) for window in self.windows)
        for window in self.windows:
            following = torch.tensor([*window[1:], -1])
            at = 0
            for rows in teacher_forced_hidden(target, shape, self.pair.device, window):
                yield rows, following[at : at + len(rows)]
                at += len(rows)
                self._done += len(rows)
                if self.progress is not None:
                    self.progress(title, self._done, self.passes * total)


def _logits(target: TargetModel) -> Callable[[torch.Tensor], torch.Tensor]:
    head = target.head  # without the rest of the model, which is let go
    return lambda hidden: head(hidden, out_dtype=torch.float32)

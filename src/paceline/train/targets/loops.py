"""The model's own answers that go round in circles, and which of their tokens it is to unlearn.

A small model that is read greedily repeats itself: what it has just written makes the same words likelier
still. More text of others does not mend that, because they do not write so. Unlikelihood on its own loops
does (Welleck et al. 2020, arXiv:1908.04319, section 5: sequence level).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.errors import ConfigError
from paceline.train.data.produce import model_fingerprint
from paceline.train.data.shards import Sample, foreign_id, read_meta, read_samples
from paceline.train.settings.target import LoopSource

Stretch = tuple[np.ndarray, np.ndarray]
"""Ids, and which of them are to be unlearnt."""


def repeats(ids: Sequence[int], gram: int) -> np.ndarray:
    """Which tokens complete a `gram`-token sequence that stands earlier in `ids` already, [len(ids)] bool.

    The first time round is left alone, and so are the first tokens of the second: they are no loop yet.
    """
    seen: set[tuple[int, ...]] = set()
    found = np.zeros(len(ids), np.bool_)
    for end in range(gram, len(ids) + 1):
        window = tuple(ids[end - gram : end])
        found[end - 1] = window in seen
        seen.add(window)
    return found


def looped(samples: Iterable[Sample], gram: int, length: int) -> Iterator[Stretch]:
    """Prompt and answer of every sample that repeats itself within its first `length` tokens."""
    for sample in samples:
        ids = np.array([*sample.prompt_ids, *sample.answer_ids], np.int32)[:length]
        flags = np.concatenate([np.zeros(len(sample.prompt_ids), np.bool_), repeats(sample.answer_ids, gram)])
        if flags[: len(ids)].any():
            yield ids, flags[: len(ids)]


def read_loops(source: LoopSource, model: Path, length: int, vocab: int) -> list[Stretch]:
    """model: the folder that is continued; vocab: ids that its tokenizer names.

    Raises: ConfigError where the folder is none of samples, or holds no answers that loop, or another
    vocabulary's. Answers of other weights are told by a warning: nobody else's loops end the model's own.
    """
    folder = Path(source.folder)
    writer = read_meta(folder).get("model_fingerprint")
    if writer not in (None, model_fingerprint(model)):
        warnings.warn(
            f"loops: the answers in {folder} are of another model than {model}, or it was changed since",
            stacklevel=2,
        )
    samples = list(read_samples(folder))
    if not samples:
        raise ConfigError(f"loops: {folder} holds no whole shard of answers yet", key="loops")
    for sample in samples:
        if foreign_id(sample, vocab) is not None:
            raise ConfigError(
                f"loops: {folder}: sample {sample.id} holds ids beyond the tokenizer's {vocab}: write "
                "answers with the model of init_from",
                key="loops",
            )
    found = list(looped(samples, source.gram, length))
    if not found:
        raise ConfigError(
            f"loops: no answer in {folder} repeats {source.gram} tokens. Leave the section out, or write "
            "answers with filters.max_repeated: null",
            key="loops",
        )
    return found

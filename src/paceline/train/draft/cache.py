"""The target's features of a set of samples on disk, so that many epochs read the target once.

    index.json              fingerprint, tokens, and the file of each document
    features-00000.safetensors   one tensor [T, K * H (+ H)] bfloat16 a document, by a digest of its ids

Documents of packed rows do not see each other, so a document's features depend on its ids alone and serve
wherever an epoch packs it. The fingerprint covers the target's weights, the taps and whether the final hidden
rows are stored: a cache of anything else is refused, because features of another model load as well and
train badly.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.errors import CapacityError, CheckpointError, ConfigError
from paceline.models.checkpoint import read_json
from paceline.train.data.batches import PADDING_DOCUMENT, SampleBatches, TokenBatch
from paceline.train.data.produce import model_fingerprint
from paceline.train.data.shards import write_json
from paceline.train.draft.features import Captured, OnlineFeatures
from paceline.train.loop.resume import disk_faults

INDEX = "index.json"
SHARD_BYTES = 1 << 30
_BYTES = 2  # of a bfloat16
_KEY = "features.folder"


@dataclass(frozen=True, slots=True)
class Span:
    """One document of a batch: row `row`, positions `start` to `end`."""

    row: int
    start: int
    end: int
    key: str


def spans(batch: TokenBatch) -> Iterator[Span]:
    """The documents of a batch on the CPU."""
    for row, (ids, documents) in enumerate(zip(batch.ids.numpy(), batch.documents.numpy(), strict=True)):
        edges = np.flatnonzero(np.diff(documents)) + 1
        for start, end in zip([0, *edges], [*edges, len(documents)], strict=True):
            if documents[start] != PADDING_DOCUMENT:
                digest = hashlib.blake2b(ids[start:end].tobytes(), digest_size=16)
                yield Span(row, int(start), int(end), digest.hexdigest())


def fingerprint(target: Path, taps: tuple[int, ...], hidden: bool) -> str:
    """What a cache depends on besides the ids: the target's weights, and what of it is stored."""
    return f"{model_fingerprint(target)} taps {list(taps)}{' and hidden' if hidden else ''}"


class CachedFeatures:
    """Reads features of batches from a folder; every document of the data is there."""

    def __init__(self, folder: Path, width: int, hidden: int) -> None:
        """width: of the tapped layers together; hidden: of the final hidden rows, 0 where none are kept."""
        self.folder, self._width, self._hidden = folder, width, hidden
        self._files: dict[str, str] = read_json(folder / INDEX)["files"]
        self._open: dict[str, Any] = {}

    def __contains__(self, key: str) -> bool:
        """Whether a document's features are there."""
        return key in self._files

    def __call__(self, batch: TokenBatch) -> Captured:
        """Features of a batch on the CPU, bfloat16; 0 in padding."""
        rows = torch.zeros(*batch.ids.shape, self._width + self._hidden, dtype=torch.bfloat16)
        for span in spans(batch):
            rows[span.row, span.start : span.end] = self._tensor(span.key)
        features, hidden = rows.split([self._width, self._hidden], -1)
        return Captured(features, hidden if self._hidden else None)

    def _tensor(self, key: str) -> Tensor:
        name = self._files[key]
        try:
            if name not in self._open:
                self._open[name] = safe_open(self.folder / name, framework="pt", device="cpu")
            tensor: Tensor = self._open[name].get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{self.folder / name} is missing or damaged ({error}): remove the folder", key=_KEY
            ) from None
        return tensor


def cache_bytes(tokens: int, width: int) -> int:
    """Bytes of features of `tokens` positions with `width` numbers each."""
    return tokens * width * _BYTES


def open_cache(
    folder: Path,
    target: Path,
    online: OnlineFeatures,
    batches: SampleBatches,
    max_gib: float,
    device: torch.device,
) -> CachedFeatures:
    """The cache in `folder`, filled first where there is none; says how large it will be before it begins.

    Raises: ConfigError for a cache of another target, other taps or other data; CapacityError for one that
    would be larger than `max_gib`.
    """
    print_ = fingerprint(target, online.taps, online.hidden)
    if not (folder / INDEX).is_file():
        _fill(folder, print_, online, batches, max_gib, device)
    try:
        index = read_json(folder / INDEX)
    except CheckpointError as error:
        raise ConfigError(f"{error}; remove the folder", key=_KEY) from None
    if index.get("fingerprint") != print_:
        raise ConfigError(
            f"{folder} was made of another target, or with other taps or another kind of loss: give another "
            "folder, or remove this one",
            key=_KEY,
        )
    cache = CachedFeatures(folder, online.width, online.hidden_width)
    if any(span.key not in cache for batch in _epoch(batches) for span in spans(batch)):
        raise ConfigError(
            f"{folder} lacks some of the samples (other data, or another data.length): give another folder, "
            "or remove this one",
            key=_KEY,
        )
    return cache


def _epoch(batches: SampleBatches) -> Iterator[TokenBatch]:
    return (batches.batch(step) for step in range(batches.steps_per_epoch()))


@dataclass(slots=True)
class _Writer:
    """Collects documents and writes a file whenever there is enough."""

    folder: Path
    files: dict[str, str] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    size: int = 0
    count: int = 0

    def add(self, key: str, value: Tensor) -> None:
        """Take one document's features."""
        if key not in self.files and key not in self.held:
            self.held[key] = value
            self.size += value.numel() * value.element_size()
            if self.size >= SHARD_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self.held:
            name = f"features-{self.count:05d}.safetensors"
            with disk_faults(self.folder / name, SafetensorError):
                save_file(self.held, str(self.folder / name))
            self.files |= dict.fromkeys(self.held, name)
            self.held, self.size, self.count = {}, 0, self.count + 1


def _fill(
    folder: Path,
    print_: str,
    online: OnlineFeatures,
    batches: SampleBatches,
    max_gib: float,
    device: torch.device,
) -> None:
    width = online.width + online.hidden_width
    gib = cache_bytes(batches.num_tokens, width) / 2**30
    print(
        f"features of {batches.num_tokens:,} tokens, {width:,} numbers each: {gib:,.3g} GiB in {folder}",
        file=sys.stderr,
    )
    if gib > max_gib:
        raise CapacityError(
            f"the cache in {folder} would take {gib:,.3g} GiB, more than features.max_gib = {max_gib:g}: "
            "raise it, or set features.mode: online"
        )
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(folder)
    for batch in _epoch(batches):
        said = online(batch.to(device))
        parts = [part for part in (said.features, said.hidden) if part is not None]
        rows = torch.cat(parts, -1).to("cpu", torch.bfloat16)
        for span in spans(batch):
            # A copy: a view would keep the whole batch alive.
            writer.add(span.key, rows[span.row, span.start : span.end].clone())
    writer.flush()
    write_json(folder / INDEX, {"fingerprint": print_, "tokens": batches.num_tokens, "files": writer.files})

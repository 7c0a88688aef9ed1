"""Writing safetensors files tensor by tensor, in any order, without holding a file in memory.

All names, dtypes and shapes are known beforehand, so the header goes first and each tensor to its place. A
file appears under its own name only once it is complete.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from paceline.errors import CapacityError, ConfigError
from paceline.models.checkpoint import INDEX_FILE, SINGLE_FILE, Shape

DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I64": torch.int64,
}
ITEM_SIZES = {name: dtype.itemsize for name, dtype in DTYPES.items()}
ITEM_SIZES |= {"F64": 8, "I32": 4, "U32": 4, "I16": 2, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "BOOL": 1}
"""Bytes of an element by safetensors' name of its dtype."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i)?B?", re.IGNORECASE)
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file to be written."""

    name: str
    dtype: str
    """safetensors' own name, one of `DTYPES`."""
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def parse_size(text: str) -> int:
    """Bytes of a size such as 5GB, 500MB or 4GiB. Raises: ConfigError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"size {text!r} is none; write for example 5GB or 500MB", key="shard_size")
    prefix, binary = (match[2] or "").upper(), match[3] is not None
    return int(float(match[1]) * (1024 if binary else 1000) ** " KMGT".index(prefix or " "))


def divide(groups: Sequence[Sequence[TensorSpec]], limit: int) -> list[list[int]]:
    """Distribute groups of tensors over shards of at most `limit` bytes; indices of groups by shard.

    A group is never cut, so one larger than the limit makes a larger shard.
    """
    shards: list[list[int]] = [[]]
    filled = 0
    for i, group in enumerate(groups):
        size = sum(spec.nbytes for spec in group)
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(i)
        filled += size
    return shards


def shard_names(count: int) -> list[str]:
    """File names as transformers writes them: one plain file, or numbered shards."""
    if count == 1:
        return [SINGLE_FILE]
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def index_json(files: Mapping[str, Sequence[TensorSpec]]) -> dict[str, object]:
    """The content of the index over several files."""
    weight_map = {spec.name: file for file, specs in files.items() for spec in specs}
    total = sum(spec.nbytes for specs in files.values() for spec in specs)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


def write_json(path: Path, value: object) -> None:
    """Write JSON by replacement, so that no reader ever sees half a file."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)


def index_path(folder: Path) -> Path:
    """Where a folder's index is."""
    return folder / INDEX_FILE


class ShardWriter:
    """One safetensors file in the making; use it as a context manager.

    On a clean exit every tensor must have been written: the file is flushed to disk and gets its name. After
    an exception the unfinished file is removed.
    """

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        self._path = path
        self._unfinished = path.with_name(path.name + _UNFINISHED)
        # Wide types first: readers map the file and need each tensor aligned to its element.
        ordered = sorted(specs, key=lambda spec: (-DTYPES[spec.dtype].itemsize, spec.name))
        self._offsets: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for spec in ordered:
            self._offsets[spec.name] = end
            offsets = [end, end + spec.nbytes]
            header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
            end += spec.nbytes
        self._missing = {spec.name: spec for spec in ordered}
        assert len(self._missing) == len(specs), f"{path}: a tensor is named twice"
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self._size = len(self._header) + end

    def __enter__(self) -> Self:
        self._file = open(self._unfinished, "wb")
        try:
            self._put(0, self._header)
            self._file.truncate(self._size)
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Put one tensor into its place. Raises: CapacityError where the disk is full."""
        spec = self._missing.pop(name)
        assert tuple(tensor.shape) == spec.shape and tensor.dtype == DTYPES[spec.dtype], (spec, tensor.shape)
        if tensor.numel():
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self._put(len(self._header) + self._offsets[name], data.data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._missing:
            self._discard()
        if kind is not None:
            return
        assert not self._missing, f"{self._path}: never written: {sorted(self._missing)[:3]}"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.replace(self._path)

    def _put(self, offset: int, data: bytes | memoryview) -> None:
        try:
            self._file.seek(offset)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CapacityError(
                f"{self._path.parent}: the disk is full; free space for {self._size / 1e9:.2f} GB more"
            ) from None

    def _discard(self) -> None:
        try:
            self._file.close()
        finally:
            self._unfinished.unlink(missing_ok=True)

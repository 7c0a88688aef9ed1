"""Grafting a multi-token head: the base model's `mtp.*` tensors, bit for bit, into a quantised checkpoint.

Quantisers that go through transformers lose the head, since transformers drops it on load. In place, the
steps are ordered so that the folder loads after each of them, and a second run finishes what a first one
began: new shard, new index, renaming of the single file (which loaders would prefer to an index), configs.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.errors import CheckpointError, ConfigError, PairingError, UnsupportedModelError
from paceline.models.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint, read_json
from paceline.models.quantization import read_declared
from paceline.quantize.layout import MTP
from paceline.quantize.mtp_head import check_head
from paceline.quantize.output_folder import OutputFolder, OutputOptions
from paceline.quantize.quant_config import HF_QUANT_CONFIG, final_config, with_mtp_ignored
from paceline.quantize.shards import ITEM_SIZES, ShardWriter, TensorSpec, write_json

MTP_FILE = "mtp.safetensors"
_RENAMED = "model-00001-of-00001.safetensors"
_COMPRESSED_IGNORE = "re:.*mtp.*"


@dataclass(frozen=True, slots=True)
class GraftReport:
    """What was grafted."""

    out: Path
    hashes: dict[str, str]
    """sha256 of each tensor of the head, the same in the base and in the result."""
    nbytes: int
    changed: list[str]
    """Files that were written or renamed; empty where everything was in place already."""


def graft_mtp(
    base: Path, quantised: Path, out: Path | None = None, output: OutputOptions | None = None
) -> GraftReport:
    """Copy the multi-token head of the folder `base` into `quantised`, or into a copy of it at `out`.

    Raises: PairingError where `base` has no head or one that does not fit, UnsupportedModelError where it is
    itself quantised, ConfigError where `quantised` has another head already or `out` is in the way,
    CheckpointError where a tensor differs after writing.
    """
    donor, target = Checkpoint.open(base), Checkpoint.open(quantised)
    head = {name: info for name, info in donor.tensors.items() if name.startswith(MTP)}
    if not head:
        raise PairingError(f"{base} has no multi-token head: no tensor begins with mtp.")
    for name, info in head.items():
        if info.dtype not in ("BF16", "F32"):
            raise UnsupportedModelError(f"{base}: {name} is stored as {info.dtype}; graft from the original")
    _check_descriptions(target)
    check_head({name: info.shape for name, info in head.items()}, target, str(base))
    hashes = {name: tensor_hash(donor.weight(name)) for name in sorted(head)}
    if out is None:
        changed = _graft_into(quantised, donor, hashes)
    else:
        changed = _graft_copy(quantised, out, [base, quantised], donor, hashes, output or OutputOptions())
    place = out or quantised
    _verify(place, hashes)
    return GraftReport(place, hashes, sum(_nbytes(donor, name) for name in head), changed)


def _check_descriptions(target: Checkpoint) -> None:
    """Raises: CheckpointError for a description that could not be extended, before anything is written."""
    with suppress(UnsupportedModelError):  # a head may well be grafted into what others read
        read_declared(target)
    separate = target.path / HF_QUANT_CONFIG
    if separate.is_file():
        quantization = read_json(separate).get("quantization")
        listed = quantization.get("exclude_modules") if isinstance(quantization, dict) else 0
        if listed is not None and not isinstance(listed, list):
            raise CheckpointError(f"{separate} has no object named quantization with a list exclude_modules")


def tensor_hash(tensor: torch.Tensor) -> str:
    """sha256 of a tensor's bytes."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def _graft_copy(
    quantised: Path,
    out: Path,
    sources: list[Path],
    donor: Checkpoint,
    hashes: Mapping[str, str],
    options: OutputOptions,
) -> list[str]:
    if options.resume:
        raise ConfigError("graft-mtp takes seconds and does not resume; give --force", key="resume")
    files = [file for file in sorted(quantised.iterdir()) if file.is_file()]
    size = sum(file.stat().st_size for file in files) + sum(_nbytes(donor, name) for name in hashes)
    folder = OutputFolder.begin(out, sources, ["graft", str(quantised)], size, options)
    try:
        for file in files:
            shutil.copyfile(file, folder.work / file.name)
        changed = _graft_into(folder.work, donor, hashes)
    except BaseException:
        shutil.rmtree(folder.work)
        raise
    folder.finish()
    return changed


def _graft_into(folder: Path, donor: Checkpoint, hashes: Mapping[str, str]) -> list[str]:
    target = Checkpoint.open(folder)
    changed = []
    if not _has_head(target, hashes):
        _write_head(folder, donor, hashes)
        changed += [MTP_FILE, *_write_index(target, donor, hashes)]
    names = {*target.tensors, *hashes}
    section = _quantization(target.config)
    config = final_config(target.config, section, names)
    changed += _rewrite(folder / "config.json", target.config, config)
    separate = folder / HF_QUANT_CONFIG
    if separate.is_file():
        content = read_json(separate)
        changed += _rewrite(separate, content, _with_head_excluded(content))
    return changed


def _has_head(target: Checkpoint, hashes: Mapping[str, str]) -> bool:
    """Whether the very same head is there; another one may only be replaced where it is a file of its own."""
    present = {name: info for name, info in target.tensors.items() if name.startswith(MTP)}
    if set(present) == set(hashes) and all(
        tensor_hash(target.weight(name)) == value for name, value in hashes.items()
    ):
        return True
    if any(info.file.name != MTP_FILE for info in present.values()):
        raise ConfigError(
            f"{target.path} has another multi-token head inside its own files; quantise again with --mtp BASE"
        )
    return False


def _write_head(folder: Path, donor: Checkpoint, hashes: Mapping[str, str]) -> None:
    specs = [TensorSpec(name, donor.tensors[name].dtype, donor.tensors[name].shape) for name in hashes]
    with ShardWriter(folder / MTP_FILE, specs) as writer:
        for name in hashes:
            writer.write(name, donor.weight(name))


def _write_index(target: Checkpoint, donor: Checkpoint, hashes: Mapping[str, str]) -> list[str]:
    single = target.path / SINGLE_FILE
    files = {
        name: _RENAMED if info.file == single else info.file.name
        for name, info in target.tensors.items()
        if not name.startswith(MTP)
    }
    total = sum(_nbytes(target, name) for name in files) + sum(_nbytes(donor, name) for name in hashes)
    index = target.path / INDEX_FILE
    metadata = read_json(index).get("metadata") if index.is_file() and not single.is_file() else None
    metadata = {**(metadata if isinstance(metadata, dict) else {}), "total_size": total}
    weight_map = dict(sorted({**files, **dict.fromkeys(hashes, MTP_FILE)}.items()))
    write_json(index, {"metadata": metadata, "weight_map": weight_map})
    if not single.is_file():
        return [INDEX_FILE]
    single.rename(target.path / _RENAMED)
    return [INDEX_FILE, _RENAMED]


def _quantization(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`quantization_config` with the head among what is not quantised."""
    section = config.get("quantization_config")
    if not isinstance(section, dict):
        return None
    ignore = list(section.get("ignore") or [])
    if section.get("quant_method") != "compressed-tensors":
        return {**section, "ignore": with_mtp_ignored(ignore)}
    return {**section, "ignore": ignore + [_COMPRESSED_IGNORE] * (_COMPRESSED_IGNORE not in ignore)}


def _with_head_excluded(content: Mapping[str, Any]) -> dict[str, Any]:
    """hf_quant_config.json with the head among what is not quantised."""
    quantization = dict(content.get("quantization") or {})
    quantization["exclude_modules"] = with_mtp_ignored(quantization.get("exclude_modules") or [])
    return {**content, "quantization": quantization}


def _rewrite(path: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    if before == after:
        return []
    write_json(path, after)
    return [path.name]


def _nbytes(checkpoint: Checkpoint, name: str) -> int:
    info = checkpoint.tensors[name]
    count = 1
    for size in info.shape:
        count *= size
    return count * ITEM_SIZES[info.dtype]


def _verify(folder: Path, hashes: Mapping[str, str]) -> None:
    written = Checkpoint.open(folder)
    for name, value in hashes.items():
        if name not in written.tensors or tensor_hash(written.weight(name)) != value:
            raise CheckpointError(f"{folder}: {name} differs from the base after writing; check the disk")

"""Published heads: a folder with the head alone, which `paceline graft-mtp` takes, or the target with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from paceline.models.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint, read_config
from paceline.models.qwen3_5_config import MTP_PREFIX
from paceline.train.data.shards import write_json
from paceline.train.draft.export import named_tensors, save_weights
from paceline.train.modules.mtp import MTPHead

HEAD_FILE = "mtp.safetensors"
_RENAMED = "model-00001-of-00001.safetensors"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
"""What holds weights; all else in the target's folder (tokenizer, template, generation config) goes along."""


def export_head(head: MTPHead, target: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the head alone, with the target's config.json: BASE of `paceline graft-mtp`, or `init_from`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _with_head(read_config(target))
    config.pop("quantization_config", None)  # of the target's weights, of which none is here
    write_json(folder / "config.json", config)
    save_weights(folder / SINGLE_FILE, named_tensors(head, MTP_PREFIX, dtype))


def export_model(head: MTPHead, target: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write a copy of the target with the head in it, in place of one that it has."""
    tensors = named_tensors(head, MTP_PREFIX, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(folder / HEAD_FILE, tensors)
    _compose(list(tensors), target, folder, shutil.copyfile)


def link_model(head_folder: Path, target: Path, folder: Path) -> None:
    """A folder that loads as the target with the head of `head_folder`, made of links: for measuring."""
    os.symlink((head_folder / SINGLE_FILE).resolve(), folder / HEAD_FILE)
    _compose(list(Checkpoint.open(head_folder).tensors), target, folder, os.symlink)


def _compose(head: list[str], target: Path, folder: Path, put: Callable[[Path, Path], Any]) -> None:
    """Put the target's files beside the head's, under names that leave room for an index of both."""
    source = target.resolve()
    for file in sorted(source.iterdir()):
        ours = file.name in ("config.json", INDEX_FILE)
        if file.is_file() and not ours and not file.name.endswith(_WEIGHTS):
            put(file, folder / file.name)
    kept = {n: i.file for n, i in Checkpoint.open(source).tensors.items() if not n.startswith(MTP_PREFIX)}
    # A single file's own name would win over the index.
    names = {file: _RENAMED if file.name == SINGLE_FILE else file.name for file in set(kept.values())}
    for file, name in names.items():
        put(file.resolve(), folder / name)
    weight_map = {name: names[file] for name, file in kept.items()} | dict.fromkeys(head, HEAD_FILE)
    write_json(folder / INDEX_FILE, {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))})
    write_json(folder / "config.json", _with_head(read_config(source)))


def _with_head(config: dict[str, Any]) -> dict[str, Any]:
    """config.json that says there is a head of one layer, wherever its numbers stand."""
    config = deepcopy(config)
    inner = config.get("text_config")
    place = inner if isinstance(inner, dict) else config
    place["mtp_num_hidden_layers"] = 1
    return config

"""Encoded sources on disk, so that a second start need not read and encode them again.

One .npz file: ids, what is learnt, sizes and kinds of both splits, and a description of what they were made
from: the settings that count, a digest of every source file and of the tokenizer. A file that is there must
still have its digest; one that is not (the cache was carried to another machine) is taken on trust, and said.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from paceline.errors import ConfigError
from paceline.train.settings.target import TargetSettings
from paceline.train.targets.rows import Tokens

SPLITS = ("train", "held_out")
_COUNTED = ("text", "dialogues", "answers", "synth", "held_out", "length")


def describe(settings: TargetSettings, tokenizer: Tokenizer) -> dict[str, Any]:
    """What encoded sources depend on."""
    kept = settings.model_dump(mode="json", include=set(_COUNTED))
    return {
        "settings": kept,
        "tokenizer": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        "files": {str(path): _digest(path) for path in _files(settings)},
    }


def save(path: Path, parts: dict[str, Tokens], description: dict[str, Any]) -> None:
    """Write the cache, by replacement."""
    arrays: dict[str, Any] = {"description": np.array(json.dumps(description))}
    for split, tokens in parts.items():
        small = np.uint16 if len(tokens.ids) == 0 or tokens.ids.max() < 1 << 16 else np.int32
        arrays |= {
            f"{split}/ids": tokens.ids.astype(small),
            f"{split}/learn": np.packbits(tokens.learn),
            f"{split}/sizes": tokens.sizes.astype(np.int32),
            f"{split}/characters": np.array(json.dumps(tokens.characters)),
        }
        arrays |= {f"{split}/kind/{k}": np.array(v, np.int32) for k, v in tokens.kinds.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
    unfinished.replace(path)


def load(path: Path, description: dict[str, Any], length: int) -> dict[str, Tokens]:
    """Both splits.

    Raises: ConfigError where the file is no cache, or one of other settings, sources or tokenizer.
    """
    try:
        with np.load(path) as file:
            stored = {name: file[name] for name in file.files}
        _check(path, json.loads(str(stored["description"])), description)
        return {split: _tokens(stored, split, length) for split in SPLITS}
    except (OSError, ValueError, KeyError) as exc:
        raise ConfigError(
            f"cache: {path} is no cache of encoded sources ({exc}): remove it", key="cache"
        ) from exc


def _tokens(stored: dict[str, np.ndarray], split: str, length: int) -> Tokens:
    begin = f"{split}/kind/"
    ids = stored[f"{split}/ids"].astype(np.int32)
    return Tokens.of(
        length,
        ids,
        np.unpackbits(stored[f"{split}/learn"])[: len(ids)].astype(np.bool_),
        stored[f"{split}/sizes"].astype(np.int64),
        {name.removeprefix(begin): stored[name].tolist() for name in stored if name.startswith(begin)},
        json.loads(str(stored[f"{split}/characters"])),
    )


def _check(path: Path, made_of: dict[str, Any], wanted: dict[str, Any]) -> None:
    for part in ("settings", "tokenizer"):
        if made_of[part] != wanted[part]:
            raise ConfigError(
                f"cache: {path} was made with other {part}: remove it, or name another", key="cache"
            )
    trusted = [name for name, digest in wanted["files"].items() if digest is None]
    changed = [
        name for name, digest in wanted["files"].items() if digest and made_of["files"].get(name) != digest
    ]
    if changed:
        raise ConfigError(f"cache: {changed[0]} has changed since {path} was made: remove it", key="cache")
    if trusted:
        warnings.warn(f"{', '.join(trusted)} not found: {path} is taken as it stands", stacklevel=2)


def _files(settings: TargetSettings) -> list[Path]:
    """Every file that sources are read from, folders resolved."""
    named = [*(Path(s.path) for s in settings.text), *(Path(s.path) for s in settings.dialogues)]
    named += [Path(a.folder) / f for a in settings.answers for f in ("prompts.jsonl", f"{a.part}.npz")]
    named += [Path(novel) for made in settings.synth for novel in made.novels]
    found = (sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path] for path in named)
    return [file for files in found for file in files]


def _digest(path: Path) -> str | None:
    """None for a file that is not there."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

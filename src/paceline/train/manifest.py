"""The manifest: where each piece of text came from and what was exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.train.config import DemoConfig
from paceline.train.corpus import source_files
from paceline.train.export import sha256

_EXPORTED = ("target", "drafter")


def build(config: DemoConfig, corpus: Path, out: Path) -> dict[str, Any]:
    """sources: file, origin, licence, sha256, bytes, how to obtain; files: sha256 of every exported file."""
    facts = {s.file: s for s in config.sources}
    sources = []
    for path, kind in source_files(corpus, config):
        known = facts.get(path.name)
        sources.append(
            {
                "file": path.name,
                "kind": kind,
                "origin": known.origin if known else "given by the user",
                "licence": known.licence if known else "not stated",
                "obtain": known.obtain if known else "not stated",
                "sha256": sha256(path),
                "bytes": path.stat().st_size,
            }
        )
    found = sorted(p for folder in _EXPORTED for p in (out / folder).glob("*") if p.is_file())
    return {
        "name": config.name,
        "sources": sources,
        "files": {p.relative_to(out).as_posix(): sha256(p) for p in found},
    }


def check(folder: Path, recorded: dict[str, str]) -> list[str]:
    """Names of files under ``folder`` whose content differs from the recorded hash, or that are missing."""
    return [n for n, h in recorded.items() if not (folder / n).is_file() or sha256(folder / n) != h]

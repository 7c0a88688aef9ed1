"""What the architecture tests walk over: the package's modules, parsed, and the tracked files."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "paceline"


@dataclass(frozen=True)
class Module:
    """One Python file of the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """Its folder directly below the package, or its own name at the top."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    @property
    def short(self) -> str:
        return str(self.path.relative_to(PACKAGE))


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the package, sorted by name."""
    return tuple(sorted(_parse(), key=lambda module: module.name))


def _parse() -> Iterator[Module]:
    for path in PACKAGE.rglob("*.py"):
        parts = ["paceline", *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


def rooms() -> list[str]:
    """The folders directly below the package that hold code."""
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files under version control; outside a checkout, those that a release contains."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return tuple(path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file())
    folders = ("src", "tests", "docs")
    return tuple(path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())

"""Templates kept as text: blocks of lines with blank lines between them, `#` lines are comments."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def blocks(name: str) -> tuple[tuple[str, ...], ...]:
    """The blocks of `texts/NAME.txt`, each a tuple of its lines, indentation kept."""
    source = files("paceline.train.synth") / "texts" / f"{name}.txt"
    text = source.read_text(encoding="utf-8")
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        if line.strip():
            found[-1].append(line.rstrip())
        elif found[-1]:
            found.append([])
    return tuple(tuple(block) for block in found if block)

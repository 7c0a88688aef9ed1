"""What is generated: prompts of a file, and prompts of one length where only the length matters."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from paceline.config.lines import json_lines
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a prompts file."""

    id: str
    category: str
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON-lines file: `id`, `prompt`, perhaps `category`; ConfigError for a bad line."""
    prompts = []
    for where, row in json_lines(path, "prompts"):
        if not {"id", "prompt"} <= row.keys():
            raise ConfigError(f"{where}: needs `id` and `prompt`", key="prompts")
        prompts.append(Prompt(str(row["id"]), str(row.get("category", "")), str(row["prompt"])))
    if not prompts:
        raise ConfigError(f"{path}: no prompts in it", key="prompts")
    return prompts


def random_prompts(batch: int, length: int, vocab: int, seed: int = 0) -> list[list[int]]:
    """`batch` different prompts of `length` random ids; the first ids, often special ones, are left out."""
    source = random.Random(seed)
    return [[source.randrange(min(16, vocab - 1), vocab) for _ in range(length)] for _ in range(batch)]


def cut_prompts(encoded: list[list[int]], batch: int, length: int) -> list[list[int]]:
    """`batch` prompts of exactly `length` tokens, cut from real ones; short ones are joined to the next."""
    found: list[list[int]] = []
    current: list[int] = []
    while len(found) < batch:
        before = len(found)
        for ids in encoded:
            current += ids
            if len(current) >= length:
                found.append(current[:length])
                current = []
            if len(found) == batch:
                break
        assert len(found) > before or current, "prompts hold no tokens"
    return found

"""Reads what the user typed or pointed at: JSON options and files of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click

from paceline.config import SpeculativeConfig
from paceline.errors import ConfigError, RequestError

_UNREADABLE = (ValueError, RecursionError)
"""What `json.loads` raises: bad syntax, a number of too many digits; too many brackets."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to run. `id` is as in the file, so that results can be joined to it."""

    id: str | int
    text: str
    category: str = ""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of `--prompts` that cannot be run, and why."""

    id: str | int | None
    error: str


def parse_json_option(text: str, option: str) -> dict[str, Any]:
    """The JSON object given to `option`; raises `ConfigError` where it is anything else."""
    try:
        value = json.loads(text, object_pairs_hook=_once_each)
    except _UNREADABLE as error:
        raise ConfigError(f"{option} is not readable JSON: {error}", key=option) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object, such as {{}}, not {text.strip()}", key=option)
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two values for one key, Python would drop the first in silence."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the key {twice!r} stands twice")
    return dict(pairs)


def parse_speculative(text: str) -> dict[str, Any]:
    """`--speculative-config`, checked before anything is loaded."""
    values = parse_json_option(text, "--speculative-config")
    SpeculativeConfig.parse(values)
    return values


def read_prompts(path: str) -> list[Prompt | BadLine]:
    """Every line of a JSON-lines file in order, blank ones skipped. An unreadable line is a `BadLine`."""
    with click.open_file(path, encoding="utf-8", errors="surrogateescape") as lines:
        entries = list(_parse_lines(lines))
    if not entries:
        raise RequestError(
            f"{path} holds no prompt: it needs JSON lines with `id` and `prompt`", param="prompts"
        )
    return entries


def _parse_lines(lines: Iterable[str]) -> Iterable[Prompt | BadLine]:
    first_seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = _parse_line(number, line)
        if isinstance(entry, Prompt):
            before = first_seen.setdefault(str(entry.id), number)
            if before != number:
                entry = BadLine(entry.id, f"line {number}: id {entry.id!r} was used on line {before}")
        yield entry


def _parse_line(number: int, line: str) -> Prompt | BadLine:
    if not is_text(line):
        return BadLine(None, f"line {number}: not UTF-8")
    try:
        value = json.loads(line)
    except _UNREADABLE as error:
        return BadLine(None, f"line {number}: not readable JSON: {error}")
    if not isinstance(value, dict):
        return BadLine(None, f"line {number}: must be a JSON object with `id` and `prompt`")
    name, text = value.get("id"), value.get("prompt")
    if isinstance(name, bool) or not isinstance(name, str | int):
        return BadLine(None, f"line {number}: `id` must be a string or a whole number")
    if isinstance(name, str) and not is_text(name):
        return BadLine(None, f"line {number}: `id` holds half a surrogate pair, which is no text")
    if not isinstance(text, str):
        return BadLine(name, f"line {number}: `prompt` must be a string")
    if not is_text(text):
        return BadLine(name, f"line {number}: `prompt` holds half a surrogate pair, which is no text")
    category = value.get("category")
    if not text:
        return BadLine(name, f"line {number}: `prompt` is empty")
    return Prompt(name, text, category if isinstance(category, str) and is_text(category) else "")


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8; one read from other bytes, or from "\\ud800", cannot."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

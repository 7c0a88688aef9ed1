"""What an answer is worth: pure functions of texts and token ids, without a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.train.evaluate.calls import read_calls

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FENCE = re.compile(r"```(?:json)?\n(.*?)\n?```", re.DOTALL)


def visible(text: str) -> str:
    """The answer behind its think block, without the end-of-turn token."""
    return text.rpartition("</think>")[2].replace("<|im_end|>", "").replace("<|endoftext|>", "").strip()


def last_number(text: str) -> str | None:
    """The last number of a text, without thousands separators; None if there is none."""
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def number_right(text: str, result: str) -> bool:
    """Whether the last number of an answer is the result."""
    found = last_number(visible(text))
    return found is not None and float(found) == float(result)


@dataclass(frozen=True, slots=True)
class CallScore:
    """How far an answer that should be one tool call got."""

    parses: bool
    """It holds calls, all well formed."""
    name: bool
    """It parses, and the first call names the right tool, which is the only call."""
    arguments: bool
    """Also its arguments are exactly those that were asked for."""


def score_call(text: str, tools: Sequence[Mapping[str, Any]], name: str, arguments: Any) -> CallScore:
    """Score an answer against the one call that it should be."""
    calls = read_calls(visible(text), tools)
    if not calls:
        return CallScore(False, False, False)
    named = len(calls) == 1 and calls[0][0] == name
    return CallScore(True, named, named and _same(calls[0][1], arguments))


@dataclass(frozen=True, slots=True)
class ExtractionScore:
    """How far an answer that should be JSON got."""

    valid: bool
    keys: bool
    """Valid, and every record has exactly the keys that were asked for."""
    right: int
    """Values that are right."""
    total: int


def score_extraction(text: str, record: Any) -> ExtractionScore:
    """Score an answer against the record, or list of records, that it should spell.

    A single record may come as a list of one. Records are compared place by place; what is missing is wrong.
    """
    expected = record if isinstance(record, list) else [record]
    total = sum(len(row) for row in expected)
    valid, found = _json(visible(text))
    if not valid:
        return ExtractionScore(False, False, 0, total)
    rows = found if isinstance(found, list) else [found]
    keys = len(rows) == len(expected) and all(
        isinstance(row, dict) and set(row) == set(wanted) for row, wanted in zip(rows, expected, strict=True)
    )
    right = sum(
        key in row and _same(row[key], value)
        for row, wanted in zip(rows, expected, strict=False)
        if isinstance(row, dict)
        for key, value in wanted.items()
    )
    return ExtractionScore(True, keys, right, total)


def _json(text: str) -> tuple[bool, Any]:
    fenced = _FENCE.fullmatch(text)
    try:
        return True, json.loads(fenced[1] if fenced else text)
    except ValueError:
        return False, None


def _same(found: Any, wanted: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1, at any depth."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[key], wanted[key]) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    return bool(found == wanted)

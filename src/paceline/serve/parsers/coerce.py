"""The text of a parameter's value to the JSON value that the schema asks for.

Types are tried from the most to the least particular: null, integer, number, boolean, object, array, string.
The first that the text spells is taken; with an `enum`, the first whose value is one of its members. If none
fits, the value is whatever JSON the text is, else the text. Only JSON comes out: Infinity, NaN and numbers
that a double cannot hold stay text.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from paceline.serve.parsers.schema import Kind
from paceline.serve.parsers.source import BLANK

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERAL_LIMIT = 20_000
"""Characters up to which a Python literal is looked for: its parser is not made for more."""

_NESTED = 100
"""Brackets from which on it is tried whether a value can be written."""


class _No(Exception):
    """The text does not spell a value of this type."""


def dumps(value: Any) -> str:
    """JSON that can be sent: characters as they are, but lone surrogates escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def coerce(text: str, kind: Kind) -> Any:
    """The value of a parameter of this kind that is written as `text`. Never fails."""
    readings = list(_readings(text, kind))
    for value in readings:
        if any(value == member and type(value) is type(member) for member in kind.members):
            return value
    if readings:
        return readings[0]
    bare = text.strip(BLANK)
    if not bare and "null" in kind.types:
        return None
    try:
        return _json(bare)
    except _No:
        return text


def _readings(text: str, kind: Kind) -> Iterator[Any]:
    """What the text can be among the kind's types, the most particular first."""
    bare = text.strip(BLANK)
    for name, read in _READERS.items():
        if name in kind.types:
            try:
                yield read(bare)
            except _No:
                continue
    if "string" in kind.types:
        yield text


def _null(text: str) -> None:
    if text.lower() != "null" and text != "None":  # the template of Qwen3.5 wrote Python's words
        raise _No


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _No
    return int(text.partition(".")[0])


def _number(text: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        raise _No
    if text.lstrip("+-").isdecimal() and len(text) <= 4000:
        return int(text)
    return _finite(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _No
    return value


def _boolean(text: str) -> bool:
    match text.lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise _No


def _container(kind: type[dict] | type[list]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = _json(text)
        except _No:
            value = _python(text)
        if not isinstance(value, kind):
            raise _No
        return value

    return read


def _constant(_: str) -> Any:
    raise _No


def _json(text: str) -> Any:
    try:
        # Not strict: models write line ends into strings as they are.
        value = json.loads(text, strict=False, parse_constant=_constant, parse_float=_finite)
        if text.count("[") + text.count("{") > _NESTED:
            dumps(value)  # what is nested so deeply that it cannot be written again stays text
        return value
    except (ValueError, RecursionError) as error:
        raise _No from error


def _python(text: str) -> Any:
    """A Python literal such as {'a': True}, as far as it is JSON too. Nothing is evaluated."""
    if len(text) > _LITERAL_LIMIT or text[:1] not in ("{", "["):
        raise _No
    try:
        return json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise _No from error


_READERS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container(dict),
    "array": _container(list),
}

"""What a JSON schema of a request may hold: a grammar is made of it in the engine's process, while all wait.

Size and depth are bounded, references stay inside the schema, and counts that stand inside each other in a
pattern, such as `((a{1,100}){1,100})`, are bounded too: the grammar of that one would take minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from paceline.serve.errors import ApiError

MOST_BYTES, MOST_LEVELS = 64 * 1024, 64
"""A grammar is compiled in time that grows with the third power of its depth."""
MOST_REPEATS = 2000
"""Of all patterns together; see `nested_repeats`. Seconds of compiling."""

UNFOLLOWED = frozenset({
    "contains", "minContains", "maxContains", "uniqueItems", "not", "if", "then", "else", "dependentRequired",
    "dependentSchemas", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
})  # fmt: skip
"""Keywords that the grammar's library reads over: an answer could break them."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose keys are the user's own names, and not keywords."""

_ATOM = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,9})(?:(,)(\d{0,9}))?\}|.", re.DOTALL)


def bounded(schema: Any, param: str) -> str:
    """A schema as JSON. Raises `ApiError` for one that is too large or that no grammar could follow."""
    try:
        text = json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError):
        raise ApiError(f"{param}: the schema is no JSON, or too deep", param=param) from None
    repeats = 0
    if len(text) <= MOST_BYTES:
        for level, value in _values(schema):
            if level > MOST_LEVELS:
                break
            repeats += _repeats(value, param)
        else:
            if repeats <= MOST_REPEATS:
                return text
            raise ApiError(
                f"{param}: counts inside counts of patterns, as in (a{{9}}){{9}}, multiply to {repeats}, "
                f"and {MOST_REPEATS} is the most: make them smaller",
                param=param,
            )
    raise ApiError(
        f"{param}: a schema may have {MOST_BYTES} bytes and {MOST_LEVELS} levels at most", param=param
    )


def unfollowed(schema: Any) -> str | None:
    """The first keyword of a schema that no answer would be held to; None: all are followed."""
    inside = [schema]
    while inside:
        value = inside.pop()
        if isinstance(value, list):
            inside += value
        elif isinstance(value, dict):
            ignored = next((key for key in value if key in UNFOLLOWED), None)
            if ignored is not None:
                return ignored
            for key, child in value.items():
                named = key in _NAMED and isinstance(child, dict)
                inside += (
                    child.values() if named else [child] if key not in ("const", "enum", "default") else []
                )
    return None


def nested_repeats(pattern: str) -> int:
    """The largest product of counts that stand inside each other in a regular expression; 0 if none do.

    `([a-z]{1,63}\\.){1,10}` has 630. A count that has no end counts with its beginning.
    """
    best, groups = 0, [(1, 0)]  # of each open group: the largest product inside, and its depth
    last = (1, 0)
    for found in _ATOM.finditer(pattern):
        word = found[0]
        if word == "(":
            groups.append((1, 0))
            last = (1, 0)
        elif word == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = max(groups[-1], last)
        elif found[1] is not None:
            count = max(int(found[1]), int(found[3] or 0))
            last = (last[0] * count, last[1] + 1) if count > 1 else last
            groups[-1] = max(groups[-1], last)
            best = max(best, last[0]) if last[1] > 1 else best
        elif word not in "*+?":
            last = (1, 0)
    return best


def _values(schema: Any) -> Iterator[tuple[int, Any]]:
    """Every object and list of a schema with its depth, outer ones first."""
    level, inside = 0, [schema]
    while inside:
        level += 1
        yield from ((level, value) for value in inside)
        inside = [
            child
            for value in inside
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]


def _repeats(value: Any, param: str) -> int:
    """Of the patterns of one object of a schema. Raises `ApiError` for a reference to another place."""
    if not isinstance(value, dict):
        return 0
    target = value.get("$ref")
    if isinstance(target, str) and not target.startswith("#"):
        raise ApiError(
            f"{param}: $ref {target[:80]!r} leads out of the schema, and nothing is fetched", param=param
        )
    patterns = [value.get("pattern"), *_keys(value.get("patternProperties"))]
    return sum(nested_repeats(pattern) for pattern in patterns if isinstance(pattern, str))


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else []

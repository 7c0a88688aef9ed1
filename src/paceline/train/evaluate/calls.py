"""Tool calls in an answer, read strictly: what is not written as the chat template writes it is no call.

The server's parser mends much of what models write; a bar must not. What is read here the server reads the
same, which a test holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
"""Name and arguments."""

_CALL = re.compile(
    r"<tool_call>\n<function=(?P<name>[^<>\s]+)>\n"
    r"(?P<given>(?:<parameter=[^<>\s]+>\n(?:(?!</?parameter|</?function|</?tool_call).)*\n</parameter>\n)*)"
    r"</function>\n</tool_call>",
    re.DOTALL,
)
_GIVEN = re.compile(r"<parameter=([^<>\s]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def read_calls(text: str, tools: Sequence[Mapping[str, Any]]) -> list[Call] | None:
    """All calls of an answer, values as the tools' schemas type them; None where one is malformed.

    A tool that is not on offer is read too, with all its values as texts.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    calls = []
    for found in _CALL.finditer(text):
        properties = schemas.get(found["name"], {}).get("properties", {})
        given = _GIVEN.findall(found["given"])
        if len({key for key, _ in given}) < len(given):
            return None
        calls.append((found["name"], {key: _value(text, properties.get(key, {})) for key, text in given}))
    rest = _CALL.sub("", text)
    return None if re.search(r"</?(tool_call|function|parameter)\b", rest) else calls


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value as its type says; a text that does not fit its type stays a text."""
    kind = schema.get("type", "string")
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    fits = {
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    return value if fits.get(kind, True) else text

"""What a tool's JSON schema says about the types of its parameters.

The model writes every value as bare text, so the schema alone tells 5 from "5". Read leniently: types are
gathered from `type`, `enum`, `const`, `nullable`, `anyOf`, `oneOf`, `allOf` and local `$ref`s; what is
malformed says nothing. A schema is never an error here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_BRANCHES = ("anyOf", "oneOf", "allOf")
_DIALECTS = {
    "int": "integer",
    "float": "number",
    "double": "number",
    "str": "string",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}
_TYPES = frozenset({"null", "integer", "number", "boolean", "object", "array", "string"})


@dataclass(frozen=True, slots=True)
class Kind:
    """What one parameter may be."""

    types: frozenset[str]
    """JSON schema type names; empty if the schema does not say (then any JSON is taken, else a string)."""
    members: tuple[Any, ...] = ()
    """The values of `enum` and `const`, if there are any."""

    @property
    def is_text(self) -> bool:
        """Whether the value is a string whatever it says, so that it can be streamed."""
        return self.types == {"string"}


TEXT = Kind(frozenset({"string"}))
"""A parameter that the schema does not name: a string, as it stands."""


class ParameterKinds:
    """The parameters of one tool."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._properties: dict[str, Any] = {}
        self._others: Any = None
        for node in self._nodes(schema):
            properties = node.get("properties")
            if isinstance(properties, Mapping):
                self._properties = {**properties, **self._properties}
            if isinstance(node.get("additionalProperties"), Mapping):
                self._others = self._others or node["additionalProperties"]
        self._kinds: dict[str, Kind] = {}

    def knows(self, key: str) -> bool:
        """Whether the schema names this parameter."""
        return key in self._properties

    def __getitem__(self, key: str) -> Kind:
        """The kind of a parameter, also of one that the schema does not name."""
        if key not in self._properties:
            return TEXT if self._others is None else self._kind(self._others)
        if key not in self._kinds:
            self._kinds[key] = self._kind(self._properties[key])
        return self._kinds[key]

    def _kind(self, schema: Any) -> Kind:
        types: set[str] = set()
        members: list[Any] = []
        for node in self._nodes(schema):
            own = list(node["enum"]) if isinstance(node.get("enum"), list | tuple) else []
            own += [node["const"]] if "const" in node else []
            members += own
            types |= _named_types(node) or {_type_of(value) for value in own}
            if node.get("nullable") is True:
                types.add("null")
        return Kind(frozenset(types), tuple(members))

    def _nodes(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """The schema, and all that its references and branches lead to, each once."""
        waiting, seen = [schema], set()
        while waiting:
            node = waiting.pop(0)
            if not isinstance(node, Mapping) or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if "$ref" in node:
                waiting.append(self._resolve(node["$ref"]))
            for name in _BRANCHES:
                branches = node.get(name)
                waiting += branches if isinstance(branches, list | tuple) else ()

    def _resolve(self, reference: Any) -> Any:
        """What a reference within the schema points to; None if it leads nowhere or outside."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node: Any = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list | tuple) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, Mapping):
                node = node.get(part)
            else:
                return None
        return node


def _named_types(node: Mapping[str, Any]) -> set[str]:
    """The types that a node names itself, or gives away by its other keywords."""
    named = node.get("type")
    names = [named] if isinstance(named, str) else named if isinstance(named, list | tuple) else []
    types = {_DIALECTS.get(name.lower(), name.lower()) for name in names if isinstance(name, str)}
    if not types and "properties" in node:
        return {"object"}
    if not types and "items" in node:
        return {"array"}
    return types & _TYPES


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"

"""Values of parameters that no recorded text shows, and schemas that are not as they should be."""

from __future__ import annotations

import json
import time

import pytest

from paceline.serve.parsers.coerce import coerce, dumps
from paceline.serve.parsers.schema import TEXT, Kind, ParameterKinds


def kind(*types: str, members: tuple = ()) -> Kind:
    return Kind(frozenset(types), members)


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("  7\n", ("integer",), 7),
        ("+7", ("integer",), 7),
        ("007", ("integer",), 7),
        ("٣", ("integer",), "٣"),
        ("1", ("integer", "boolean"), 1),
        ("true", ("integer", "boolean"), True),
        ("5.", ("number",), 5.0),
        ("5.5", ("integer", "number"), 5.5),
        ("None", ("null", "string"), None),
        ("NULL", ("null",), None),
        ("", ("string", "null"), ""),
        ("[1]", ("object", "array"), [1]),
        ("[1]", ("object",), [1]),
        ("{}", ("string",), "{}"),
        ("[1e999]", ("array",), "[1e999]"),
        ("{1: 2}", ("object",), {"1": 2}),
        ("{1, 2}", ("object",), "{1, 2}"),
        ("__import__('os')", ("object",), "__import__('os')"),
        ("[" * 100_000, ("array",), "[" * 100_000),
        ("[" * 3000 + "]" * 3000, (), None),
    ],
)
def test_coerce(text, types, value):
    found = coerce(text, kind(*types))
    if value is not None or "null" in types:
        assert found == value and type(found) is type(value)
    dumps(found)


def test_a_member_of_the_enum_is_preferred():
    assert coerce("1", kind("integer", "string", members=("1", "2"))) == "1"
    assert coerce("1", kind("integer", "string", members=(1, 2))) == 1
    assert coerce("true", kind("boolean", "string", members=("true", "auto"))) == "true"
    assert coerce("3", kind("integer", members=(1, 2))) == 3


def test_lone_surrogates_can_be_sent():
    text = dumps(coerce('{"k": "\\ud800"}', kind("object")))
    assert text.encode() == b'{"k": "\\ud800"}'
    assert json.loads(text) == {"k": "\ud800"}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "int"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"const": 3}, {"integer"}),
        ({"enum": ["a", None]}, {"string", "null"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/L"}]}, {"integer", "array"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/nowhere"}, set()),
        ({"$ref": "https://elsewhere/schema"}, set()),
        ({"$ref": "#/anyOf/0"}, {"number"}),
        ({"type": "colour"}, set()),
        ({"type": 5, "anyOf": {}, "enum": "x"}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_types_of_a_schema(schema, types):
    root = {
        "properties": {"p": schema},
        "$defs": {"L": {"type": "list"}, "loop": {"allOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#"}]}},
        "anyOf": [{"type": "number"}],
    }
    if schema == {"$ref": "#/$defs/loop"}:
        types = {"object", "number"}  # the root, through the loop: it has properties and a branch
    assert ParameterKinds(root)["p"].types == types


def test_properties_behind_references_and_the_kind_of_all_others():
    kinds = ParameterKinds(
        {
            "$ref": "#/$defs/A",
            "$defs": {"A": {"properties": {"n": {"type": "integer"}}}},
            "additionalProperties": {"type": "number"},
        }
    )
    assert kinds.knows("n") and not kinds.knows("m")
    assert (kinds["n"].types, kinds["m"].types) == ({"integer"}, {"number"})
    assert ParameterKinds({"additionalProperties": True})["m"] is TEXT


def test_a_schema_of_many_references_to_itself_costs_nothing():
    start = time.monotonic()
    assert ParameterKinds(
        {"properties": {"p": {"allOf": [{"$ref": "#"}] * 200}}, "anyOf": [{"$ref": "#"}] * 200}
    )["p"].types
    assert time.monotonic() - start < 1

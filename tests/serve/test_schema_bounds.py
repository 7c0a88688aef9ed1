"""Schemas that would keep the engine busy for minutes, or that lead elsewhere, are refused before it."""

from __future__ import annotations

import json

import pytest

from paceline.serve.errors import ApiError
from paceline.serve.schema_bounds import MOST_BYTES, MOST_LEVELS, bounded, nested_repeats, unfollowed


@pytest.mark.parametrize(
    ("pattern", "product"),
    [
        ("a{1,100000}", 0),
        ("(a|b){7}c{3}", 0),
        ("(a{1,100})*b", 0),
        ("(a{3}){4}", 12),
        ("((a{1,100}){1,100})b", 10_000),
        ("((a?){30}){30}b", 900),
        ("(x(a{2,}b{5})+){3}", 15),
        (r"^([a-z0-9-]{1,63}\.){1,10}[a-z]{2,63}$", 630),
        (r"([{(]{9}\)\{9}){2}", 18),
        ("((((", 0),
        ("a{1}){2}{3}", 6),
    ],
)
def test_counts_inside_counts(pattern: str, product: int) -> None:
    assert nested_repeats(pattern) == product


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}b"},
        {"type": "object", "patternProperties": {"((a{1,100}){1,100})": {}}},
        {"propertyNames": {"pattern": "((a{1,100}){1,100})"}},
        {"anyOf": [{"pattern": "(a{30}){40}"}, {"pattern": "(b{30}){40}"}]},
        {"properties": {"a": {"$ref": "http://127.0.0.1/schema"}}},
        {"$ref": "file:///etc/passwd"},
        {"const": float("nan")},
        {"const": "x" * MOST_BYTES},
    ],
)
def test_what_no_grammar_should_be_made_of(schema: dict) -> None:
    with pytest.raises(ApiError) as caught:
        bounded(schema, "field")
    assert caught.value.param == "field" and caught.value.status == 400 and len(str(caught.value)) < 250


def test_depth() -> None:
    def deep(levels: int) -> dict:
        return {"items": deep(levels - 1)} if levels > 1 else {}

    assert bounded(deep(MOST_LEVELS), "field") == json.dumps(deep(MOST_LEVELS))
    for levels in (MOST_LEVELS + 1, 400):
        with pytest.raises(ApiError, match="64 levels"):
            bounded(deep(levels), "field")


def test_ordinary_schemas_pass() -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"$ref": "#/$defs/host"}, "$ref": {"type": "string"}},
        "$defs": {"host": {"type": "string", "pattern": r"^([a-z0-9-]{1,63}\.){1,10}[a-z]{2,63}$"}},
    }
    assert json.loads(bounded(schema, "field")) == schema


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"anyOf": [{"type": "string"}, {"not": {"type": "null"}}]}, "not"),
        ({"type": "array", "items": {"if": {"const": 1}, "then": {"const": 2}}}, "if"),
        ({"$defs": {"x": {"contains": {"const": 1}}}, "$ref": "#/$defs/x"}, "contains"),
        ({"type": "object", "properties": {"not": {"type": "string"}, "if": {"type": "integer"}}}, None),
        ({"enum": [{"not": 1}], "default": {"contains": 2}}, None),
        ({"type": "object", "patternProperties": {"not": {"minItems": 1}}, "minProperties": 1}, None),
    ],
)
def test_keywords_that_no_answer_is_held_to(schema: object, keyword: str | None) -> None:
    assert unfollowed(schema) == keyword

"""Single tools: names, schemas and requests; and code exercises with their heads."""

from __future__ import annotations

import re

from paceline.train.synth.catalog import CATALOG, single_tool
from paceline.train.synth.dialogue import Draw
from paceline.train.synth.docstrings import exercise
from paceline.train.synth.functions import FAMILIES, function


def draws(count=400, split="train"):
    return (Draw(6, index, split, "catalog") for index in range(count))


def test_single_tools_are_called_with_what_the_request_says():
    dotted = kinds = left_out = 0
    for draw in draws():
        dialogue = single_tool(draw, False)
        (tool,) = dialogue.tools
        schema = tool["function"]["parameters"]
        request = dialogue.prompt[-1]["content"]
        assert not re.search(r"[\[\]{}]| {2}", request), request
        dotted += "." in tool["function"]["name"]
        kinds += schema["type"] == "dict"
        for name, arguments in dialogue.facts["calls"]:
            assert name == tool["function"]["name"]
            assert set(schema["required"]) <= set(arguments) <= set(schema["properties"])
            left_out += len(arguments) < len(schema["properties"])
            for value in arguments.values():
                said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                assert value is True or said in request
    assert dotted > 200 and 150 < kinds < 300 and left_out > 100 and len(CATALOG) >= 35


def test_names_of_single_tools_are_disjoint():
    names = {
        split: {
            single_tool(d, False).tools[0]["function"]["name"].replace(".", "_") for d in draws(600, split)
        }
        for split in ("train", "held_out")
    }
    assert len(names["held_out"]) > 50 and not names["train"] & names["held_out"]


def test_heads_of_exercises_stand_above_their_body():
    typed = 0
    for family in FAMILIES:
        for draw in draws(4):
            made = function(draw, family)
            head, space = exercise(draw, made), {}
            exec(f"{head}\n{made.body}", space)
            assert eval(made.call, space) == made.result and made.call in head
            assert all(eval(call, space) == result for call, result in made.more)
            typed += head.startswith("from typing import")
    assert typed > 20

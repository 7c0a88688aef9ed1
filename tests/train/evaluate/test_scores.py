"""What answers are worth: right ones score fully, near misses do not, and reading agrees with the server."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.serve.parsers import ParserOptions, ToolSpec, assemble, make_parser
from paceline.train.data.filters import repeated_tokens
from paceline.train.evaluate.calls import read_calls
from paceline.train.evaluate.scores import (
    CallScore,
    ExtractionScore,
    last_number,
    number_right,
    score_call,
    score_extraction,
    visible,
)
from paceline.train.synth.render import pieces
from paceline.train.synth.tools import tools

CALL = "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
KINDS = {"n": "integer", "x": "number", "s": "string", "b": "boolean", "a": "array"}
TOOLS = [{
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {k: {"type": t} for k, t in KINDS.items()}}},
}]  # fmt: skip


def naive_repeats(ids, n):
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    twice = [i for i, gram in enumerate(grams) if grams.count(gram) > 1]
    return sum(any(i <= at < i + n for i in twice) for at in range(len(ids)))


@given(st.lists(st.integers(0, 2), max_size=24), st.integers(1, 4))
def test_repetition_as_defined(ids, n):
    assert repeated_tokens(ids, n) == naive_repeats(ids, n)


def test_repetition_by_hand():
    assert repeated_tokens(list(range(40))) == 0
    assert repeated_tokens([*range(12), *range(12)]) == 24
    assert repeated_tokens([*range(12), 99, *range(12)]) == 24
    assert repeated_tokens([7] * 13) == 13, "both places overlap"
    assert repeated_tokens([7] * 12) == 0


@pytest.mark.parametrize("text, number", [
    ("2+3=5, write 5. So 2 + 3 = 5<|im_end|>", "5"), ("It is 1,234.", "1234"), ("-7", "-7"), ("none", None),
    ("12 - 7 = 5", "5"), ("3.5", "3.5"),
])  # fmt: skip
def test_the_last_number(text, number):
    assert last_number(text) == number


def test_numbers_right():
    assert number_right("<think>\n9\n</think>\n\nThe answer is 12.<|im_end|>", "12")
    assert not number_right("12 is not it, 13 is", "12")
    assert not number_right("no idea", "12")
    assert number_right("3 - 10 = -7", "-7") and not number_right("7", "-7")


def test_what_is_visible():
    assert visible("hm\n</think>\n\n yes <|im_end|>") == "yes"


@pytest.mark.parametrize("text, calls", [
    (CALL, [("f", {"n": 3})]),
    (f"Sure.\n\n{CALL}", [("f", {"n": 3})]),
    (f"{CALL}\n{CALL}", [("f", {"n": 3})] * 2),
    (CALL.replace("\n3\n", "\nthree\n"), [("f", {"n": "three"})]),
    (CALL.replace("\n3\n", "\n3.5\n"), [("f", {"n": "3.5"})]),
    (CALL.replace("=n>", "=b>").replace("\n3\n", "\ntrue\n"), [("f", {"b": True})]),
    (CALL.replace("=n>", "=s>").replace("\n3\n", "\n3\n4\n"), [("f", {"s": "3\n4"})]),
    (CALL.replace("=n>", "=a>").replace("\n3\n", '\n["p", "q"]\n'), [("f", {"a": ["p", "q"]})]),
    (CALL.replace("=f>", "=g>"), [("g", {"n": "3"})]),
    ("<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", {})]),
    ("no call", []),
    (CALL.removesuffix("\n</tool_call>"), None),
    (CALL.replace("</parameter>\n", ""), None),
    (CALL.replace("<tool_call>\n", ""), None),
    (CALL.replace("</function>", "<parameter=n>\n4\n</parameter>\n</function>"), None),
])  # fmt: skip
def test_calls_are_read_strictly(text, calls):
    assert read_calls(text, TOOLS) == calls


def test_the_server_reads_the_same():
    for index in range(80):
        dialogue = tools(11, index, "held_out")
        text = pieces(dialogue)[-2].text.removesuffix("<|im_end|>")
        specs = [ToolSpec(t["function"]["name"], t["function"]["parameters"]) for t in dialogue.tools]
        options = ParserOptions(in_reasoning=dialogue.thinking, tools=tuple(specs))
        parser = make_parser("qwen3", "qwen3_coder", options, None)
        message = assemble([*parser.feed([], text), *parser.finish()])
        served = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
        assert read_calls(visible(text), dialogue.tools) == served


def test_call_scores():
    whole, nothing = CallScore(True, True, True), CallScore(False, False, False)
    assert score_call(CALL + "<|im_end|>", TOOLS, "f", {"n": 3}) == whole
    assert score_call(CALL, TOOLS, "f", {"n": 4}) == CallScore(True, True, False)
    assert score_call(CALL, TOOLS, "f", {"n": 3, "s": "x"}) == CallScore(True, True, False)
    assert score_call(CALL, TOOLS, "g", {"n": 3}) == CallScore(True, False, False)
    assert score_call(f"{CALL}\n{CALL}", TOOLS, "f", {"n": 3}) == CallScore(True, False, False)
    assert score_call("I cannot do that.", TOOLS, "f", {}) == nothing
    assert score_call(CALL[:-3], TOOLS, "f", {"n": 3}) == nothing
    true = CALL.replace("=n>", "=b>").replace("\n3\n", "\ntrue\n")
    assert not score_call(true, TOOLS, "f", {"b": 1}).arguments, "true is not 1"


@pytest.mark.parametrize("text, score", [
    ('{"a": 1, "b": "x"}', ExtractionScore(True, True, 2, 2)),
    ('```json\n{"b": "x", "a": 1.0}\n```', ExtractionScore(True, True, 2, 2)),
    ('[{"a": 1, "b": "x"}]', ExtractionScore(True, True, 2, 2)),
    ('{"a": 1}', ExtractionScore(True, False, 1, 2)),
    ('{"a": true, "b": "y", "c": 0}', ExtractionScore(True, False, 0, 2)),
    ('{"a": 1, "b": "x"', ExtractionScore(False, False, 0, 2)),
    ('Here: {"a": 1, "b": "x"}', ExtractionScore(False, False, 0, 2)),
    ("[]", ExtractionScore(True, False, 0, 2)),
    ("3", ExtractionScore(True, False, 0, 2)),
])  # fmt: skip
def test_extraction_scores(text, score):
    assert score_extraction(text, {"a": 1, "b": "x"}) == score


def test_records_are_compared_place_by_place():
    wanted = [{"a": 1}, {"a": 2}]
    assert score_extraction('[{"a": 2}, {"a": 1}]', wanted) == ExtractionScore(True, True, 0, 2)
    assert score_extraction('[{"a": 1}]', wanted) == ExtractionScore(True, False, 1, 2)
    assert score_extraction('[{"a": 1}, {"a": 2}, {"a": 3}]', wanted) == ExtractionScore(True, False, 2, 2)

"""Recorded texts mean the same to the machine, to the reference, with ids and without, however they come."""

from __future__ import annotations

import pytest

from paceline import SamplingParams
from paceline.serve.parsers import Message, ToolCall
from paceline.serve.parsers.reference import parse_whole
from paceline.serve.parsers.tags import TagReader
from tests.serve.parsers.cases import Case
from tests.serve.parsers.cases_calls import CALL_CASES
from tests.serve.parsers.cases_defects import DEFECT_CASES
from tests.serve.parsers.cases_text import TEXT_CASES
from tests.serve.parsers.machinery import EOS, TURN, Plain, encode, increments, read, read_text, tags

CASES = [*TEXT_CASES, *CALL_CASES, *DEFECT_CASES]


def name_of(case: Case) -> str:
    return case.id[:60]


def needs_ids(case: Case) -> bool:
    """Whether only ids tell the tags from the text."""
    return any(isinstance(part, Plain) or TURN in part for part in case.output)


each = pytest.mark.parametrize("case", CASES, ids=name_of)


def expected(case: Case, *, ids: bool = True) -> Message:
    calls = [
        ToolCall(f"call_{i}" if ids else "", call.name, call.text, call.complete)
        for i, call in enumerate(case.calls)
    ]
    return Message(case.reasoning, case.content, calls)


def marked(case: Case) -> str:
    """The whole output as the reference reads it."""
    reader = TagReader(tags())
    params = SamplingParams(max_tokens=None)
    return (
        "".join(reader.feed(*piece) for piece in increments(encode(case.output), [], params))
        + reader.finish()
    )


def test_there_are_enough_texts_and_each_has_its_own_name():
    assert len(CASES) >= 60
    assert len({case.id for case in CASES}) == len(CASES)


@each
def test_all_at_once(case):
    assert read(case.output, case.options) == expected(case)


@each
@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_some_tokens_at_a_time(case, size):
    sizes = [size] * (1 + len("".join(case.output).encode()) // size)
    assert read(case.output, case.options, sizes) == expected(case)


@each
def test_the_reference_agrees(case):
    assert parse_whole(marked(case), case.options) == expected(case, ids=False)


@pytest.mark.parametrize("case", [case for case in CASES if not needs_ids(case)], ids=name_of)
@pytest.mark.parametrize("size", [1, 7])
def test_without_ids(case, size):
    text = "".join(case.output).removesuffix(EOS)
    assert read_text(text, case.options, [size] * (1 + len(text) // size)) == expected(case)

"""However an output is cut and spelled, it means the same; and what is streamed is never taken back."""

from __future__ import annotations

import json

import hypothesis.strategies as st
from hypothesis import example, given, settings

from paceline import SamplingParams
from paceline.serve.parsers import (
    ContentDelta,
    ParserOptions,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    assemble,
)
from paceline.serve.parsers.reference import parse_whole
from paceline.serve.parsers.tags import TAGS, TagReader
from tests.serve.parsers.cases import TOOLS
from tests.serve.parsers.machinery import Plain, encode, increments, new_parser, run, tags
from tests.serve.parsers.test_recorded import CASES, expected

ANY_LENGTH = SamplingParams(max_tokens=None)
FRAGMENTS = [
    *TAGS.values(), *TAGS.values(), "<function=get_weather>", "<function=pong>", "<function=", "</function>",
    "<parameter=city>", "<parameter=days>", "<parameter=n>", "<parameter=", "</parameter>", "</parameter>\n",
    "</param", "</func", "<", ">", "\n", "\n\n", " ", "\t", "3", "null", "Paris", "é", "🙂",
    '"', "\\", "{}", "```xml\n",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n", "\n</parameter>\n</function>\n</tool_call>",
]  # fmt: skip
parts = st.builds(lambda plain, text: Plain(text) if plain else text,
                  st.sampled_from([False, False, False, True]), st.sampled_from(FRAGMENTS))  # fmt: skip
outputs = st.lists(parts, max_size=14)
sizes = st.lists(st.integers(1, 9), max_size=60)
pieces = st.lists(st.booleans(), max_size=20)
options = st.builds(
    ParserOptions,
    reasoning=st.sampled_from([True, True, False]),
    in_reasoning=st.booleans(),
    tools=st.sampled_from([TOOLS, TOOLS, ()]),
    parallel_tool_calls=st.sampled_from([True, True, False]),
)


def spelled(output, taken):
    """Ids of an output; `taken` says which of the longer ordinary tokens are used."""
    return encode(output, lambda i: taken[i % len(taken)] if taken else True)


def checked(events):
    """The events, after a look at their order: one open call at most, JSON that only grows."""
    open_call, count, arguments = None, 0, ""
    for event in events:
        match event:
            case ToolCallStart(index, _, name):
                assert open_call is None and index == count and name
                open_call, count, arguments = index, count + 1, ""
            case ToolArgumentsDelta(index, text):
                assert index == open_call and text
                arguments += text
            case ToolCallEnd(index, whole, _):
                assert index == open_call and whole == arguments
                assert isinstance(json.loads(whole, parse_constant=lambda name: 1 / 0), dict)
                assert json.dumps(json.loads(whole), ensure_ascii=False) == whole
                whole.encode()
                open_call = None
            case ContentDelta(text) | ReasoningDelta(text):
                assert text
                text.encode()
    assert open_call is None
    return events


def without_ids(message):
    for call in message.tool_calls:
        call.id = ""
    return message


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), sizes, pieces)
def test_recorded_texts_in_any_tokens_and_increments(case, sizes, taken):
    stream = increments(spelled(case.output, taken), sizes, ANY_LENGTH)
    assert assemble(checked(run(new_parser(case.options), stream))) == expected(case)


@settings(max_examples=400, deadline=None)
@given(outputs, options, sizes, pieces)
@example(["<tool_call>", "<function=get_weather>", "<parameter=city>", "a", "</parameter>\n", "</func"],
         ParserOptions(tools=TOOLS), [1] * 60, [])  # fmt: skip
def test_the_machine_and_the_reference_agree(output, options, sizes, taken):
    ids = spelled(output, taken)
    reader = TagReader(tags())
    whole = "".join(reader.feed(*piece) for piece in increments(ids, [], ANY_LENGTH)) + reader.finish()
    events = checked(run(new_parser(options), increments(ids, sizes, ANY_LENGTH)))
    assert without_ids(assemble(events)) == parse_whole(whole, options)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join), options, st.lists(st.integers(0, 9)))
def test_text_alone_means_the_same_however_it_is_cut(text, options, sizes):
    chunks, at = [], 0
    for size in sizes:
        chunks.append(((), text[at : at + size]))
        at += size
    events = checked(run(new_parser(options, ids=False), [*chunks, ((), text[at:])]))
    reader = TagReader(None)
    whole = reader.feed((), text) + reader.finish()
    assert without_ids(assemble(events)) == parse_whole(whole, options)


@settings(max_examples=150, deadline=None)
@given(
    outputs,
    options,
    sizes,
    st.sampled_from(["\n", "</parameter>", "</tool_call>", "k>", "Paris", "é"]),
    st.booleans(),
)
def test_stop_strings_and_held_back_text_change_nothing(output, options, sizes, stop, include):
    params = SamplingParams(max_tokens=None, stop=[stop], include_stop_str_in_output=include)
    ids = encode(output)
    whole = assemble(run(new_parser(options), increments(ids, [], params)))
    events = checked(run(new_parser(options), increments(ids, sizes, params)))
    assert assemble(events) == whole


@settings(max_examples=200, deadline=None)
@given(outputs, sizes)
def test_without_tools_and_reasoning_nothing_is_lost(output, sizes):
    stream = increments(encode(output), sizes, ANY_LENGTH)
    message = assemble(run(new_parser(ParserOptions(reasoning=False)), stream))
    assert message.content == "".join(output)

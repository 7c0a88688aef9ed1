"""What comes out when: as early as it can be known."""

from __future__ import annotations

import json
import time

import pytest

from paceline.errors import ConfigError
from paceline.serve.parsers import (
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    assemble,
    make_parser,
)
from paceline.serve.parsers.qwen3 import Qwen3Parser
from tests.serve.parsers.cases import NO_TOOLS_ON, OFF, ON, ONE_CALL, PARIS, call
from tests.serve.parsers.machinery import encode, new_parser, tags


def feed(parser, *texts):
    return [parser.feed(encode([text]), text) for text in texts]


def test_content_and_reasoning_wait_for_whitespace_only():
    parser = new_parser(ON)
    assert feed(parser, "I ", "think\n", "</think>", "\n\n", "So ", "be it") == [
        [ReasoningDelta("I ")],
        [ReasoningDelta("think")],
        [],
        [],
        [ContentDelta("So")],
        [ContentDelta(" be it")],
    ]
    assert parser.finish() == []


def test_strings_grow_and_other_values_come_whole():
    parser = new_parser(OFF)
    head = "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
    tail = "2\n</parameter>\n</function>\n</tool_call>"
    assert feed(parser, head, "Pa", "ris\n", "</parameter>\n", "<parameter=days>\n", "1", tail) == [
        [ToolCallStart(0, "call_0", "get_weather"), ToolArgumentsDelta(0, '{"city": "')],
        [ToolArgumentsDelta(0, "Pa")],
        [ToolArgumentsDelta(0, "ris")],
        [],
        [ToolArgumentsDelta(0, '", "days": ')],
        [],
        [ToolArgumentsDelta(0, "12}"), ToolCallEnd(0, '{"city": "Paris", "days": 12}', True)],
    ]


def test_everything_of_one_increment_comes_with_it():
    parser = new_parser(ON)
    (events,) = feed(parser, f"hm\n</think>\n\nSo:\n{PARIS}\n{call('ping')}\nEnd")
    kinds = [type(event).__name__ for event in events]
    assert kinds == [
        "ReasoningDelta", "ContentDelta", "ToolCallStart", "ToolArgumentsDelta", "ToolCallEnd",
        "ToolCallStart", "ToolArgumentsDelta", "ToolCallEnd", "ContentDelta",
    ]  # fmt: skip


def test_after_the_only_call_that_is_wanted_the_parser_is_done():
    parser = new_parser(ONE_CALL)
    feed(parser, "<tool_call>\n<function=ping>\n")
    assert not parser.done
    feed(parser, "</function>")
    assert parser.done
    assert feed(parser, "\n</tool_call>\nmore") == [[]] and parser.finish() == []


def test_finish_is_final():
    parser = new_parser(OFF)
    feed(parser, "<tool_call>\n<function=ping>\n")
    assert parser.finish() == [ToolArgumentsDelta(0, "{}"), ToolCallEnd(0, "{}", False)]
    assert parser.done and parser.finish() == [] and feed(parser, "x") == [[]]


def test_ids_are_made_once_a_call_and_differ():
    parser = Qwen3Parser(OFF, tags())
    message = assemble([*feed(parser, PARIS, PARIS)[0], *parser.finish()])
    other = assemble([*feed(Qwen3Parser(OFF, tags()), PARIS)[0]])
    assert message.tool_calls[0].id.startswith("call_") and len(message.tool_calls[0].id) == 29
    assert message.tool_calls[0].id != other.tool_calls[0].id


@pytest.mark.parametrize("key", ["content", "other", "a"])
def test_time_grows_with_the_text(key):
    name = "write_file" if key != "a" else "set"
    big = json.dumps(["x < </p", "y"] * 3000)
    text = call(name, **{key: big})
    start = time.process_time()
    parser = new_parser(OFF, ids=False)
    events = [event for at in range(0, len(text), 4) for event in parser.feed((), text[at : at + 4])]
    value = json.loads(assemble([*events, *parser.finish()]).tool_calls[0].arguments)[key]
    assert value == (json.loads(big) if key == "a" else big)
    assert time.process_time() - start < 4


def test_parsers_by_name():
    text = f"a\n</think>\n\n{PARIS}"
    both = assemble(make_parser("qwen3", "qwen3_xml", ON, None).feed((), text))
    assert (both.reasoning, both.content, len(both.tool_calls)) == ("a", "", 1)
    only = make_parser("qwen3", None, ON, None)
    assert assemble([*only.feed((), text), *only.finish()]).content == PARIS
    neither = make_parser(None, None, NO_TOOLS_ON, None)
    assert assemble([*neither.feed((), text), *neither.finish()]).content == text
    with pytest.raises(ConfigError, match="qwen3_coder or qwen3_xml"):
        make_parser("qwen3", "hermes", ON, None)
    with pytest.raises(ConfigError, match="reasoning_parser"):
        make_parser("deepseek_r1", None, ON, None)

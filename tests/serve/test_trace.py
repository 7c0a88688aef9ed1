"""Tokens that are traced, each with the text that it brought."""

from __future__ import annotations

from paceline.engine.results import StreamEvent
from paceline.serve.trace import Tracer


class Table(dict):
    """Bytes of a tokenizer that has none of its own."""

    special_ids = frozenset({9})


TABLE = Table({1: b"a", 2: "é".encode()[:1], 3: "é".encode()[1:], 9: b"<|end|>"})


def event(ids, accepted, drafted, index=0):
    return StreamEvent("r", index, "", ids, None, None, drafted=drafted, accepted=accepted)


def told(trace):
    return [(token["id"], token["source"], token["text"]) for token in trace["tokens"]]


def test_sources_and_texts():
    tracer = Tracer(TABLE)
    assert told(tracer.trace(event([1], 0, 0))) == [(1, "plain", "a")]
    trace = tracer.trace(event([1, 2, 3], 2, 4))
    assert told(trace) == [(1, "draft", "a"), (2, "draft", ""), (3, "bonus", "é")] and trace["drafted"] == 4
    assert told(tracer.trace(event([1, 9], 1, 1))) == [(1, "draft", "a"), (9, "bonus", "")]


def test_a_character_may_span_events_but_not_choices():
    tracer = Tracer(TABLE)
    tracer.trace(event([2], 0, 0, index=0))
    assert told(tracer.trace(event([1], 0, 0, index=1))) == [(1, "plain", "a")]
    assert told(tracer.trace(event([3], 0, 0, index=0))) == [(3, "plain", "é")]

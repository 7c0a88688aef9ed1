"""Tokens that are traced, each with the text that it brought."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models

from paceline.engine.detokenizer import TokenBytes
from paceline.engine.results import StreamEvent
from paceline.serve.trace import Tracer


def make_table():
    """Of a tokenizer with a letter, the two bytes of é, and a special token."""
    tokenizer = Tokenizer(models.BPE(vocab={"x": 0, "a": 1, "Ã": 2, "©": 3}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return TokenBytes(tokenizer), tokenizer.token_to_id("<|end|>")


TABLE, END = make_table()


def event(ids, accepted, drafted, index=0):
    return StreamEvent("r", index, "", ids, None, None, drafted=drafted, accepted=accepted)


def told(trace):
    return [(token["id"], token["source"], token["text"]) for token in trace["tokens"]]


def test_sources_and_texts():
    tracer = Tracer(TABLE)
    assert told(tracer.trace(event([1], 0, 0))) == [(1, "plain", "a")]
    trace = tracer.trace(event([1, 2, 3], 2, 4))
    assert told(trace) == [(1, "draft", "a"), (2, "draft", ""), (3, "bonus", "é")] and trace["drafted"] == 4
    assert told(tracer.trace(event([1, END], 1, 1))) == [(1, "draft", "a"), (END, "bonus", "")]


def test_a_character_may_span_events_but_not_choices():
    tracer = Tracer(TABLE)
    tracer.trace(event([2], 0, 0, index=0))
    assert told(tracer.trace(event([1], 0, 0, index=1))) == [(1, "plain", "a")]
    assert told(tracer.trace(event([3], 0, 0, index=0))) == [(3, "plain", "é")]

"""Tags are found by their tokens, at the right place of the text, however late the text comes."""

from __future__ import annotations

import pytest

from paceline.serve.parsers import opens_reasoning
from paceline.serve.parsers.tags import CLOSE_THINK, OPEN_CALL, SpelledTags, TagReader, spell
from tests.serve.parsers.cases import PARIS
from tests.serve.parsers.machinery import Plain, encode, table, tags

BOTH = encode(["a</think>b", Plain("</think>"), "<tool_call>"])
TEXT = "a</think>b</think><tool_call>"
MARKED = f"a{CLOSE_THINK}b</think>{OPEN_CALL}"


def test_only_tokens_are_tags():
    assert TagReader(tags()).feed(BOTH, TEXT) == MARKED


def test_without_ids_letters_are_tags():
    assert TagReader(None).feed((), TEXT) == f"a{CLOSE_THINK}b{CLOSE_THINK}{OPEN_CALL}"


@pytest.mark.parametrize("lag", range(len(TEXT)))
def test_text_may_lag_behind_its_ids(lag):
    reader = TagReader(tags())
    first = reader.feed(BOTH, TEXT[: len(TEXT) - lag])
    assert first + reader.feed((), TEXT[len(TEXT) - lag :]) + reader.finish() == MARKED


def test_a_tag_that_a_stop_string_cut_in_two_is_text():
    reader = TagReader(tags())
    assert reader.feed(encode(["a</think>"]), "a</th") == "a"
    assert reader.finish() == "</th"


def test_half_a_character_before_a_tag_is_shown_as_such():
    reader = TagReader(tags())
    ids = [*"é".encode()[:1], *encode(["</think>b"])]
    assert reader.feed(ids, "\ufffd</think>b") == f"\ufffd{CLOSE_THINK}b"


def test_a_tag_that_the_text_does_not_show_is_still_found():
    tokens = tags()
    hidden = type(tokens)(tokens.marks, None, HiddenTags())
    reader = TagReader(hidden)
    ids = encode(["ab</think>cd"])
    assert reader.feed(ids[:3], "a") + reader.feed(ids[3:], "bcd") == f"ab{CLOSE_THINK}cd"


class HiddenTags:
    """The tokenizer's bytes, but the tags are special tokens."""

    special_ids = frozenset(tags().marks)

    def __getitem__(self, token_id):
        return table()[token_id]

    def text(self, token_id):
        return table().text(token_id)


def test_spelled_tags_are_held_back_no_longer_than_needed():
    tags = SpelledTags([CLOSE_THINK])
    assert [tags.feed(piece) for piece in ("a<", "/thi", "x</think", "><")] == [
        "a",
        "",
        "</thix",
        CLOSE_THINK,
    ]
    assert tags.release() == "<"


def test_surrogates_from_outside_cannot_be_mistaken_for_marks():
    assert TagReader(None).feed((), f"a{CLOSE_THINK}") == "a\ufffd"
    assert spell(f"a{CLOSE_THINK}") == "a</think>"


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n<think>\nso far", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        (f"<|im_start|>system\n{PARIS}<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        (f"<|im_start|>assistant\n<think>\nlike {PARIS}", True),
        ("no turns at all", False),
    ],
)  # the last but two: 45763, example calls are no end of reasoning
def test_where_the_output_begins(prompt, opens):
    assert opens_reasoning(prompt) is opens
    assert opens_reasoning(encode([prompt]), tags()) is opens

"""The output processor: detokenising, stops and limits, whatever the grouping of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from paceline.config.sampling import SamplingParams
from paceline.engine.detokenizer import Detokenizer, TokenBytes
from paceline.engine.output import Delta, OutputProcessor, StopStrings
from paceline.engine.results import TokenLogprobs
from paceline.errors import RequestError, UnsupportedModelError

WORDS = ["ab", "abc", "ba", "aba", "é", "€", "😀", " x", "end", "ENDER"]


def byte_chars() -> list[str]:
    """The byte-level alphabet by byte value, built another way than the code under test: by encoding."""
    own = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    free = iter(range(0x100, 0x200))
    return [chr(b) if b in own else chr(next(free)) for b in range(256)]


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are bytes, then come words, <eos> (special), <think> and "two words" (not special)."""
    chars = byte_chars()
    vocab = {c: i for i, c in enumerate(chars)}
    for word in WORDS:
        vocab["".join(chars[b] for b in word.encode())] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("two words")])
    return tokenizer


TOKENIZER = byte_tokenizer()
TABLE = TokenBytes(TOKENIZER)
EOS = TOKENIZER.token_to_id("<eos>")
SIZE = TOKENIZER.get_vocab_size()
WORD = {word: 256 + i for i, word in enumerate(WORDS)}


def ids_of(text: str) -> list[int]:
    """One token a byte."""
    return list(text.encode())


def processor(table: TokenBytes | None = TABLE, limit: int | None = None, **fields: Any) -> OutputProcessor:
    params = SamplingParams(**{"max_tokens": None, **fields})
    return OutputProcessor(params, eos_ids=(EOS,), table=table, max_tokens=limit)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, SIZE + 3), max_size=40), st.booleans())
def test_text_is_that_of_decoding_all_ids_at_once(ids: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(TABLE, skip_special_tokens=skip)
    text = "".join(detokenizer.push(i) for i in ids) + detokenizer.flush()
    assert text == TOKENIZER.decode(ids, skip_special_tokens=skip)


def test_no_half_character_in_a_stream() -> None:
    out = processor()
    assert [out.push([i]).text for i in "€x".encode()] == ["", "", "€", "x"]


def test_an_unfinished_character_shows_at_the_end() -> None:
    out = processor(limit=2)
    delta = out.push("a€".encode())
    assert (delta.text, delta.finish_reason, len(delta.token_ids)) == ("a\ufffd", "length", 2)


def test_a_decoder_that_is_not_byte_level_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(UnsupportedModelError, match="absent"):
        TokenBytes(tokenizer)
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(UnsupportedModelError, match="Metaspace"):
        TokenBytes(tokenizer)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    assert TokenBytes(tokenizer)[0] == b"a"


def test_the_stop_that_completes_first_wins_inside_one_token() -> None:
    # "xENDERy": "NDE" ends before "ENDER" though it begins later and stands later in the list.
    out = processor(stop=["ENDER", "NDE"])
    delta = out.push([ord("x"), WORD["ENDER"], ord("y")])
    assert (delta.text, delta.stop_reason) == ("xE", "NDE")
    assert delta.token_ids == [ord("x"), WORD["ENDER"]]


def test_on_equal_ends_the_longest_stop_wins() -> None:
    out = processor(stop=["b", "ab"])
    assert out.push(ids_of("xxab")).text == "xx"
    assert out.stop_reason == "ab"


def test_include_stop_string_cuts_behind_it() -> None:
    out = processor(stop="EN", include_stop_str_in_output=True)
    assert out.push([ord("x"), WORD["ENDER"]]).text == "xEN"


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    out = processor(stop=["abcd"])
    assert [out.push([i]).text for i in ids_of("xabcab")] == ["x", "", "", "", "abc", ""]
    assert out.abort().text == "ab"
    assert out.text == "xabcab" and out.finish_reason == "abort"


def test_eos_ends_without_text() -> None:
    out = processor(skip_special_tokens=False)
    delta = out.push([97, EOS, 98])
    assert (delta.text, delta.token_ids) == ("a", [97, EOS])
    assert (delta.finish_reason, delta.stop_reason) == ("stop", None)
    assert out.push([99]) == Delta("", [], None, "stop", None)


def test_ignore_eos_and_stop_token_ids() -> None:
    out = processor(ignore_eos=True, stop_token_ids=[98], skip_special_tokens=False)
    delta = out.push([97, EOS, 98, 99])
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("a<eos>", "stop", 98)
    shown = processor(stop_token_ids=[98], include_stop_str_in_output=True)
    assert shown.push([97, 98]).text == "ab"
    assert processor(ignore_eos=True, stop_token_ids=[EOS]).push([EOS]).stop_reason == EOS
    assert processor(stop_token_ids=[EOS]).push([EOS]).stop_reason is None


def test_a_stop_string_at_the_last_token_is_a_stop() -> None:
    assert processor(stop="b", max_tokens=2).push(ids_of("ab")).finish_reason == "stop"
    assert processor(stop="b", max_tokens=1).push(ids_of("ab")).finish_reason == "length"


def test_held_text_comes_out_at_the_limit() -> None:
    delta = processor(stop="abc", max_tokens=2).push(ids_of("abc"))
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("ab", ids_of("ab"), "length")


def test_the_smaller_limit_counts() -> None:
    assert len(processor(limit=3, max_tokens=5).push(ids_of("aaaaaa")).token_ids) == 3
    assert len(processor(limit=5, max_tokens=3).push(ids_of("aaaaaa")).token_ids) == 3


def test_the_first_min_tokens_end_nothing() -> None:
    out = processor(stop="ab", min_tokens=3, stop_token_ids=[99])
    assert out.push(ids_of("abc")).finish_reason is None
    delta = out.push(ids_of("xab"))
    assert (out.text, delta.stop_reason) == ("abcx", "ab")
    # A stop string may begin among the first tokens; only its end must lie behind them.
    late = processor(stop="abc", min_tokens=2)
    late.push(ids_of("abc"))
    assert (late.text, late.stop_reason) == ("", "abc")
    # One that was completed too early does not count later, even while a longer one keeps it held.
    both = processor(stop=["ab", "xabyz"], min_tokens=3)
    both.push(ids_of("xabq"))
    assert (both.text, both.finish_reason) == ("xabq", None)


def test_log_probabilities_are_dropped_with_their_tokens() -> None:
    entries = [TokenLogprobs(i, -float(i), {}) for i in ids_of("abcd")]
    out = processor(stop="b")
    delta = out.push(ids_of("abcd"), entries)
    assert delta.logprobs == entries[:2] == out.logprobs


def test_without_a_tokenizer() -> None:
    out = processor(table=None, max_tokens=2)
    assert out.push([5, 6, 7]) == Delta("", [5, 6], None, "length", None)
    with pytest.raises(RequestError) as caught:
        processor(table=None, stop="x")
    assert caught.value.param == "stop"


def cut(ids: list[int], widths: list[int]) -> list[list[int]]:
    """Split `ids` into runs of the given widths, over and over."""
    runs, at, turn = [], 0, 0
    while at < len(ids):
        width = widths[turn % len(widths)]
        runs.append(ids[at : at + width])
        at, turn = at + width, turn + 1
    return runs


token = st.one_of(st.sampled_from([*ids_of("abdeEN "), *WORD.values()]), st.integers(0, SIZE - 1))
stop = st.sampled_from(["ab", "b", "aba", "abab", "end", "ENDER", "N", "€", "é", "\ufffd", "two", "a", "xa"])


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(token, max_size=30),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    stops=st.lists(stop, max_size=3),
    ends=st.lists(st.integers(0, SIZE - 1), max_size=2),
    fields=st.fixed_dictionaries(
        {
            "include_stop_str_in_output": st.booleans(),
            "skip_special_tokens": st.booleans(),
            "ignore_eos": st.booleans(),
            "min_tokens": st.integers(0, 4),
            "max_tokens": st.integers(4, 25),
        }
    ),
)
def test_grouping_never_matters(
    ids: list[int], widths: list[int], stops: list[str], ends: list[int], fields: dict[str, Any]
) -> None:
    """Any grouping: same text, ids and end; deltas add up; and both equal a plain re-reading of the rules."""
    outcomes = set()
    for runs in (cut(ids, widths), cut(ids, [1]), [ids]):
        out = processor(stop=stops, stop_token_ids=ends, **fields)
        deltas = [out.push(run) for run in runs]
        assert [i for d in deltas for i in d.token_ids] == out.token_ids
        if out.finish_reason is None:
            deltas.append(out.abort())
        assert "".join(d.text for d in deltas) == out.text
        outcomes.add((out.text, tuple(out.token_ids), out.finish_reason, out.stop_reason))
    assert outcomes == {oracle(ids, stops, ends, fields)}


def oracle(
    ids: list[int], stops: list[str], ends: list[int], fields: dict[str, Any]
) -> tuple[str, tuple[int, ...], str, str | int | None]:
    """The rules over whole texts: decode every prefix anew, search it from the start."""
    include, skip = fields["include_stop_str_in_output"], fields["skip_special_tokens"]
    eos = set() if fields["ignore_eos"] else {EOS}
    settled = ""
    for count in range(1, len(ids) + 1):
        kept, last = ids[:count], ids[count - 1]
        armed = count > fields["min_tokens"]
        if armed and last in eos | set(ends):
            text = TOKENIZER.decode(kept if include else kept[:-1], skip_special_tokens=skip)
            return text, tuple(kept), "stop", None if last in eos else last
        text = whole_characters(kept, skip)
        hits = [
            (end, end - len(s), s)
            for s in stops
            for end in range(max(len(s), len(settled) + 1), len(text) + 1)
            if text[end - len(s) : end] == s
        ]
        if armed and hits:
            end, begin, found = min(hits)
            return text[: end if include else begin], tuple(kept), "stop", found
        settled = text
        if count == fields["max_tokens"]:
            return TOKENIZER.decode(kept, skip_special_tokens=skip), tuple(kept), "length", None
    return TOKENIZER.decode(ids, skip_special_tokens=skip), tuple(ids), "abort", None


def whole_characters(ids: list[int], skip: bool) -> str:
    """Text of `ids` without a character that is still unfinished: what one more byte would not change."""
    text = TOKENIZER.decode(ids, skip_special_tokens=skip)
    ways = [TOKENIZER.decode([*ids, b], skip_special_tokens=skip) for b in (0x41, 0x80, 0x90, 0xA0, 0xBF)]
    while not all(way.startswith(text) and len(way) > len(text) for way in ways):
        text = text[:-1]
    return text


def test_memory_of_the_matcher_is_bounded() -> None:
    matcher = StopStrings(["ab" * 4], include=False)
    for _ in range(1000):
        matcher.feed("ab a")
        assert len(matcher._held) < 8

"""`paceline.LLM`: prompts in any form and order, seeds, streams, and what results hold."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.engine.request import draw_seed
from paceline.errors import RequestError
from tests import tiny

TEXTS = {"a": "one two three", "b": "the cat", "c": "abababab", "d": "42"}
PARAMS = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tiny.make_target(tmp_path_factory.mktemp("target"))
    return LLM(str(folder), device="cpu", max_num_seqs=3, speculative_config={"method": "mtp"})


def test_the_order_of_a_batch_never_matters(llm: LLM) -> None:
    names = list(TEXTS)
    forth = llm.generate([TEXTS[name] for name in names], PARAMS, ids=names)
    names.reverse()
    back = llm.generate([TEXTS[name] for name in names], PARAMS, ids=names)
    assert [o.id for o in back] == names
    assert {o.id: (o.seed, o.token_ids) for o in forth} == {o.id: (o.seed, o.token_ids) for o in back}
    assert len({o.seed for o in forth}) == len(TEXTS), "each prompt draws from a seed of its own"


def test_equal_prompts_with_one_seed_differ_by_their_ids(llm: LLM) -> None:
    first, second = llm.generate([TEXTS["a"]] * 2, PARAMS, ids=["x", "y"])
    assert first.token_ids != second.token_ids


def test_a_reported_seed_gives_the_same_text_alone(llm: LLM) -> None:
    """Whether it came from a list's seed or was drawn."""
    drawn = PARAMS.replace(seed=None)
    outputs = [*llm.generate(list(TEXTS.values()), PARAMS), *llm.generate(list(TEXTS.values()), drawn)]
    for text, output in zip([*TEXTS.values()] * 2, outputs, strict=True):
        (alone,) = llm.generate(text, PARAMS.replace(seed=output.seed))
        assert (alone.seed, alone.token_ids) == (output.seed, output.token_ids)


def test_drawn_seeds_have_64_bits() -> None:
    seeds = [draw_seed() for _ in range(64)]
    assert len(set(seeds)) == 64 and 2**63 <= max(seeds) < 2**64
    assert SamplingParams(seed=max(seeds)).seed == max(seeds)


def test_token_ids_are_as_good_as_text(llm: LLM) -> None:
    ids = llm.encode(TEXTS["a"])
    (from_text,), (from_ids,) = llm.generate(TEXTS["a"], PARAMS), llm.generate(ids, PARAMS)
    (listed,) = llm.generate([ids], PARAMS)
    assert from_text.token_ids == from_ids.token_ids and from_ids.prompt_token_ids == ids
    assert listed.prompt_token_ids == ids and listed.seed != from_ids.seed


def test_a_stream_adds_up_to_the_result(llm: LLM) -> None:
    (expected,) = llm.generate(TEXTS["a"], PARAMS)
    events = list(llm.stream(TEXTS["a"], PARAMS))
    assert len(events) > 1 and [e.output is not None for e in events] == [False] * (len(events) - 1) + [True]
    assert "".join(event.text for event in events) == expected.text == events[-1].output.text
    assert [token for event in events for token in event.token_ids] == expected.token_ids


def test_a_stream_left_early_gives_everything_back(llm: LLM) -> None:
    stream = llm.stream(list(TEXTS.values()), PARAMS)
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    llm.engine.scheduler.check()


def test_results_have_the_attributes_of_the_json_object(llm: LLM) -> None:
    (output,) = llm.generate(TEXTS["a"], PARAMS.replace(logprobs=2))
    row = output.to_json()
    for key in ("id", "text", "token_ids", "finish_reason", "seed", "speculation"):
        assert getattr(output, key) == row[key]
    for key in ("usage", "timing"):
        assert {k: getattr(getattr(output, key), k) for k in row[key]} == row[key]
    assert [entry.token_id for entry in output.logprobs] == output.token_ids


def test_a_long_prompt_is_refused_in_one_voice(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's own complaint about length would be a second line."""
    said: list[str] = []
    monkeypatch.setattr(logging.Logger, "handle", lambda self, record: said.append(record.getMessage()))
    monkeypatch.setattr(llm.tokenizer._tokenizer, "model_max_length", 100)
    with pytest.raises(RequestError, match="max_model_len"):
        llm.encode("word " * 5000)
    assert not said


@pytest.mark.parametrize("prompt", ["", [[]], [-1], [10**6], ["one", ""]])
def test_bad_prompts_are_refused_before_anything_runs(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompt, PARAMS)
    assert not llm.engine.has_work


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], PARAMS) == []


def test_streams_side_by_side_each_get_their_own_text(llm: LLM) -> None:
    """A step serves every open stream; none swallows what belongs to another."""
    alone = {name: llm.generate(text, PARAMS)[0] for name, text in TEXTS.items()}
    streams = {name: llm.stream(TEXTS[name], PARAMS, ids=[name]) for name in "abc"}
    ids: dict[str, list[int]] = {name: list(next(stream).token_ids) for name, stream in streams.items()}
    (between,) = llm.generate(TEXTS["d"], PARAMS)
    assert between.token_ids == alone["d"].token_ids
    streams.pop("b").close()
    for name, stream in streams.items():
        events = list(stream)
        assert events[-1].output is not None and {event.id for event in events} == {name}
        assert ids[name] + [t for event in events for t in event.token_ids] == alone[name].token_ids
    assert not llm.engine.has_work
    llm.engine.scheduler.check()


def test_an_id_in_use_is_refused_and_its_stream_goes_on(llm: LLM) -> None:
    stream = llm.stream(TEXTS["a"], PARAMS)
    first = next(stream)
    with pytest.raises(RequestError, match="still open"):
        llm.generate(TEXTS["b"], PARAMS)
    rest = [t for event in stream for t in event.token_ids]
    assert [*first.token_ids, *rest] == llm.generate(TEXTS["a"], PARAMS)[0].token_ids


@pytest.mark.parametrize("prompt", [None, 5, b"x", [None], ["a", 5], [["a"]], [[1.5]], [b"x"]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is a text or a list of whole numbers"):
        llm.generate(prompt, PARAMS)
    assert not llm.engine.has_work

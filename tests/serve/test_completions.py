"""Completions: the offline engine's text, whole and streamed, with everything that can be asked for."""

from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams

SAMPLED = {"temperature": 0.9, "seed": 7, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def offline(folder):
    return LLM(str(folder), device="cpu", max_model_len=512)


def text_of(chunks, index=0):
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_the_text_is_that_of_the_offline_engine(server, offline):
    params = SamplingParams(**SAMPLED)
    expected = offline.generate("the cat", params)[0]
    answer = server.complete(**SAMPLED)
    assert answer["choices"][0]["text"] == expected.text
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": len(expected.prompt_token_ids),
        "completion_tokens": 24,
        "total_tokens": len(expected.prompt_token_ids) + 24,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["paceline"]["seed"] == 7
    assert answer["paceline"]["speculation"].keys() == expected.speculation.keys()
    assert answer["paceline"]["speculation"]["method"] == "mtp"


def test_a_stream_spells_the_same(server):
    whole = server.complete(**SAMPLED)
    chunks = server.stream(
        "/v1/completions", {"prompt": "the cat", "stream_options": {"include_usage": True}, **SAMPLED}
    )
    assert text_of(chunks) == whole["choices"][0]["text"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["paceline"] == whole["paceline"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_speculation_is_switched_by_the_request_and_leaves_the_text_alone(server):
    on = server.complete(**SAMPLED)
    off = server.complete(**SAMPLED, speculation={"enabled": False})
    short = server.complete(**SAMPLED, speculation={"num_speculative_tokens": 1})
    assert on["choices"][0]["text"] == off["choices"][0]["text"] == short["choices"][0]["text"]
    drafted = [answer["paceline"]["speculation"]["num_draft_tokens"] for answer in (on, off, short)]
    assert drafted[0] > drafted[2] > drafted[1] == 0
    error = server.error("/v1/completions", {"prompt": "a", "speculation": {"num_speculative_tokens": 9}})
    assert error["param"] == "speculation.num_speculative_tokens"


def test_a_trace_says_where_each_token_came_from(server):
    chunks = server.stream("/v1/completions", {"prompt": "the cat", "paceline": {"trace": True}, **SAMPLED})
    tokens = [token for chunk in chunks for token in chunk["paceline"]["tokens"]]
    assert len(tokens) == 24 and tokens[0]["source"] == "plain"
    assert {token["source"] for token in tokens} <= {"plain", "draft", "bonus"}
    speculation = server.complete(**SAMPLED)["paceline"]["speculation"]
    assert sum(token["source"] == "draft" for token in tokens) == speculation["num_accepted_tokens"]
    assert sum(chunk["paceline"]["drafted"] for chunk in chunks) == speculation["num_draft_tokens"]
    for chunk in chunks:
        written = "".join(token["text"] for token in chunk["paceline"]["tokens"])
        assert written == chunk["choices"][0]["text"]


def test_choices_and_prompts_are_numbered(server, offline):
    prompts = ["the cat", [7, 8, 9]]
    answer = server.complete(prompt=prompts, n=2, **SAMPLED)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    alone = [offline.generate(p, SamplingParams(n=2, **SAMPLED))[0].outputs for p in prompts]
    assert [c["text"] for c in answer["choices"]] == [o.text for outputs in alone for o in outputs]
    assert answer["usage"]["completion_tokens"] == 96


def test_stop_strings_and_reasons(server):
    text = server.complete(**SAMPLED)["choices"][0]["text"]
    stop = text[8:10]
    choice = server.complete(**SAMPLED, stop=[stop])["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    chunks = server.stream("/v1/completions", {"prompt": "the cat", **SAMPLED, "stop": stop})
    assert text_of(chunks) == choice["text"]


def test_logprobs_cover_every_token(server):
    answer = server.complete(**SAMPLED, logprobs=2)["choices"][0]["logprobs"]
    assert {len(values) for values in answer.values()} == {24}
    assert all(len(top) <= 2 for top in answer["top_logprobs"]) and max(answer["token_logprobs"]) <= 0
    chunks = server.stream("/v1/completions", {"prompt": "the cat", **SAMPLED, "logprobs": 2})
    pieces = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    for name, values in answer.items():
        assert [value for piece in pieces for value in piece[name]] == values


def test_absent_and_null_are_the_same(server):
    assert (
        server.complete(**SAMPLED, stop=None, logit_bias=None, n=None)["choices"]
        == server.complete(**SAMPLED)["choices"]
    )
    assert server.complete(temperature=0, ignore_eos=True)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    "field", ["allowed_token_ids", "logit_bias", "bad_words", "min_p", "top_k", "frequency_penalty"]
)
def test_sampling_fields_reach_the_engine(server, offline, field):
    value = {
        "allowed_token_ids": [10, 11, 12], "logit_bias": {"40": 5.0}, "bad_words": ["the"], "min_p": 0.5,
        "top_k": 2, "frequency_penalty": 1.5,
    }[field]  # fmt: skip
    expected = offline.generate("the cat", SamplingParams(**SAMPLED, **{field: value}))[0]
    assert server.complete(**SAMPLED, **{field: value})["choices"][0]["text"] == expected.text

"""Chat completions through the official client: whole, streamed, several choices, templates."""

from __future__ import annotations

import json

import openai
import pytest

from paceline import LLM, SamplingParams

SAMPLED = {"temperature": 0.9, "seed": 11, "max_tokens": 24}
FURTHER = {"ignore_eos": True}
USER = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(folder):
    llm = LLM(str(folder), device="cpu", max_model_len=512)
    return llm.generate("the cat", SamplingParams(ignore_eos=True, **SAMPLED), chat=True)[0]


def test_the_official_client_gets_the_offline_text(client, expected):
    answer = client.chat.completions.create(model="tiny", messages=USER, extra_body=FURTHER, **SAMPLED)
    assert answer.object == "chat.completion" and answer.model == "tiny"
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream_through_the_official_client(client, expected):
    stream = client.chat.completions.create(
        model="other", messages=USER, stream=True, stream_options={"include_usage": True},
        extra_body=FURTHER, **SAMPLED,
    )  # fmt: skip
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == expected.text
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24
    assert chunks[-1].paceline["speculation"]["num_drafts"] > 0
    assert len({c.id for c in chunks}) == 1


def test_the_streaming_helper_of_the_client_puts_it_together(client, expected):
    stop = expected.text[9:11]
    with client.chat.completions.stream(
        model="tiny", messages=USER, stop=stop, extra_body=FURTHER, **SAMPLED
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == expected.text[: expected.text.index(stop)]
    assert final.choices[0].finish_reason == "stop"


def test_choices_are_streamed_side_by_side(server):
    body = {"messages": USER, "n": 3, **FURTHER, **SAMPLED}
    chunks = server.stream("/v1/chat/completions", body)
    whole = server.post("/v1/chat/completions", body).json()
    for choice in whole["choices"]:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        text = "".join(piece["delta"].get("content", "") for piece in pieces)
        assert text == choice["message"]["content"]
        assert pieces[-1]["finish_reason"] == "length"
    assert len({choice["message"]["content"] for choice in whole["choices"]}) == 3


def test_logprobs_in_the_chat_form(client):
    answer = client.chat.completions.create(
        model="tiny", messages=USER, logprobs=True, top_logprobs=3, extra_body=FURTHER, **SAMPLED
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 24 and all(len(entry.top_logprobs) == 3 for entry in content)
    ordinary = [bytes(entry.bytes) for entry in content if not entry.token.startswith("<|")]
    assert b"".join(ordinary).decode() == answer.choices[0].message.content


def test_a_trace_and_logprobs_come_with_the_chunk_of_their_tokens(server):
    body = {"messages": USER, "paceline": {"trace": True}, "logprobs": True, **FURTHER, **SAMPLED}
    chunks = server.stream("/v1/chat/completions", body)
    traced = [chunk for chunk in chunks if "paceline" in chunk]
    assert sum(len(chunk["paceline"]["tokens"]) for chunk in traced) == 24
    for chunk in traced:
        assert len(chunk["choices"][0]["logprobs"]["content"]) == len(chunk["paceline"]["tokens"])


def test_max_completion_tokens_and_the_default_length(server):
    assert (
        server.chat(max_completion_tokens=3, max_tokens=9, ignore_eos=True)["usage"]["completion_tokens"] == 3
    )
    long = server.chat(ignore_eos=True, temperature=0)
    assert long["usage"]["total_tokens"] == 512


def test_parts_are_put_together_and_developers_are_systems(server):
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    count = {}
    for name, messages in {
        "text": [{"role": "system", "content": "be"}, *USER],
        "parts": [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}],
    }.items():
        answer = server.post("/tokenize", {"messages": messages}).json()
        count[name] = answer["tokens"]
    assert count["text"] == count["parts"]


def test_a_final_message_is_continued(server):
    messages = [*USER, {"role": "assistant", "content": "in the"}]
    body = {"messages": messages, "continue_final_message": True}
    answer = server.post("/tokenize", {**body, "return_token_strs": True}).json()
    assert "".join(answer["token_strs"]).endswith("inĠthe")
    assert server.post("/v1/chat/completions", {**body, "max_tokens": 2}).status_code == 200
    both = {**body, "add_generation_prompt": True}
    assert server.error("/v1/chat/completions", both)["param"] == "continue_final_message"


def test_tokens_go_there_and_back(server):
    answer = server.post("/tokenize", {"prompt": "the cat in the"}).json()
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 512
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "the cat in the"}
    assert server.error("/detokenize", {"tokens": [5000]})["param"] == "tokens"


def test_replayed_calls_that_were_cut_off_are_no_error(server):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "unfini'}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "x"}]  # fmt: skip
    assert server.post("/tokenize", {"messages": messages}).status_code == 200


def test_the_answer_is_json_whatever_the_text_holds(server):
    response = server.post("/v1/chat/completions", {"messages": USER, **FURTHER, **SAMPLED})
    json.loads(response.content.decode("utf-8"))

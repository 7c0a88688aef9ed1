"""JSON answers and forced calls over HTTP, by a model that knows nothing of either."""

from __future__ import annotations

import json

import openai
import pydantic
import pytest

pytest.importorskip("xgrammar")

from tests.serve.harness import running

USER = [{"role": "user", "content": "the cat"}]
SAMPLED = {"temperature": 1.0, "max_tokens": 300}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Kiel", "Ulm"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("rain", "sun")
]


class Answer(pydantic.BaseModel):
    """What the official client asks for, and parses."""

    yes: bool
    no: bool


@pytest.fixture(scope="module")
def server(folder):
    with running(
        folder, max_model_len=1024, max_num_seqs=4, tool_call_parser="qwen3_coder",
        reasoning_parser="qwen3", speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(server):
    return server.serving.engine.model.model


def test_the_client_gets_the_object_that_it_asked_for(client, model):
    done = 0
    for seed in range(4):
        choice = client.chat.completions.parse(
            model=model, messages=USER, response_format=Answer, seed=seed, **SAMPLED
        ).choices[0]
        done += choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Answer)
    assert done == 4


def test_drafts_and_streams_change_nothing(server):
    schema = {"name": "a", "schema": Answer.model_json_schema()}
    body = {"messages": USER, "seed": 5, "response_format": {"type": "json_schema", "json_schema": schema}}
    body |= SAMPLED
    on = server.post("/v1/chat/completions", body).json()
    off = server.post("/v1/chat/completions", {**body, "speculation": {"enabled": False}}).json()
    assert on["choices"] == off["choices"]
    chunks = server.stream("/v1/chat/completions", body)
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    assert text == on["choices"][0]["message"]["content"]
    Answer.model_validate_json(text)


def test_any_object_will_do(server):
    answer = server.chat(response_format={"type": "json_object"}, temperature=0.0, max_tokens=8)
    assert answer["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_named_tool_is_called(server, stream):
    body = {"messages": USER, "tools": TOOLS, "seed": 3, **SAMPLED}
    body["tool_choice"] = {"type": "function", "function": {"name": "sun"}}
    if stream:
        chunks = server.stream("/v1/chat/completions", body)
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert [call["function"]["name"] for call in calls if "id" in call] == ["sun"]
        arguments = "".join(call["function"]["arguments"] for call in calls)
    else:
        message = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "sun" and message["content"] is None
        arguments = call["function"]["arguments"]
    value = json.loads(arguments)
    assert value["city"].strip() in ("Kiel", "Ulm") and value["days"] in (1, 2)


def test_some_tool_is_called_where_one_is_required(server):
    body = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 1, **SAMPLED}
    choice = server.chat(**body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] in ("rain", "sun") for call in choice["message"]["tool_calls"]] == [True]


def test_what_cannot_be_forced_is_refused(server):
    chat = "/v1/chat/completions"
    named = {"type": "function", "function": {"name": "snow"}}
    error = server.error(chat, {"messages": USER, "tools": TOOLS, "tool_choice": named})
    assert error["param"] == "tool_choice.function.name"
    both = {"messages": USER, "tools": TOOLS, "tool_choice": "required",
            "response_format": {"type": "json_object"}}  # fmt: skip
    assert server.error(chat, both)["param"] == "tool_choice"
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    error = server.error(chat, {"messages": USER, "response_format": bad})
    assert error["param"] == "response_format.json_schema"


def test_schemas_have_bounds(server):
    deep, wide = {"type": "string"}, {"type": "object", "properties": {f"p{i}": {} for i in range(9000)}}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    for schema in (deep, wide):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        error = server.error("/v1/chat/completions", {"messages": USER, "response_format": form})
        assert error["param"] == "response_format.json_schema" and "levels" in error["message"]

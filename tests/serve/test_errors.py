"""What cannot be served: OpenAI's shape, the right status, the offending field."""

from __future__ import annotations

import openai
import pytest

from paceline.engine.tokenizer import load_tokenizer
from paceline.serve.chat import ChatFormat
from paceline.serve.protocol import ChatRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}

BAD_CHATS = {
    "no messages": ({}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages of another kind": ({"messages": "hi"}, "messages"),
    "unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "content of another kind": ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    "image": (
        {"messages": [*USER, {"role": "user", "content": [{"type": "text", "text": "a"}, PIXEL]}]},
        "messages[1].content[1]",
    ),
    "video": (
        {"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, "messages[0].content[0]"
    ),
    "half a character": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    "temperature below 0": ({"messages": USER, "temperature": -1}, "temperature"),
    "temperature as text": ({"messages": USER, "temperature": "hot"}, "temperature"),
    "top_p above 1": ({"messages": USER, "top_p": 1.5}, "top_p"),
    "n of 0": ({"messages": USER, "n": 0}, "n"),
    "n as bool": ({"messages": USER, "n": True}, "n"),
    "stop of numbers": ({"messages": USER, "stop": [1]}, "stop[0]"),
    "empty stop": ({"messages": USER, "stop": ""}, "stop"),
    "a bad word of a whole page": ({"messages": USER, "bad_words": ["a b " * 50]}, "bad_words"),
    "bad words by the thousand": ({"messages": USER, "bad_words": ["a"] * 2000}, "bad_words"),
    "a stop of a whole book": ({"messages": USER, "stop": "a" * 100000}, "stop"),
    "bias out of range": ({"messages": USER, "logit_bias": {"5": 300}}, "logit_bias"),
    "bias of an unknown id": ({"messages": USER, "logit_bias": {"5000": 1}}, "logit_bias"),
    "bias of no id": ({"messages": USER, "logit_bias": {"x": 1}}, "logit_bias"),
    "top_logprobs alone": ({"messages": USER, "top_logprobs": 2}, "top_logprobs"),
    "too many top_logprobs": ({"messages": USER, "logprobs": True, "top_logprobs": 50}, "top_logprobs"),
    "max_tokens of 0": ({"messages": USER, "max_tokens": 0}, "max_tokens"),
    "max_completion_tokens of 0": ({"messages": USER, "max_completion_tokens": 0}, "max_completion_tokens"),
    "min over max": ({"messages": USER, "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    "options without a stream": ({"messages": USER, "stream_options": {}}, "stream_options"),
    "a template of the request": ({"messages": USER, "chat_template": "{{ x }}"}, "chat_template"),
    "a reserved variable": (
        {"messages": USER, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"
    ),
    "a schema that is none": (
        {"messages": USER, "response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"
    ),
    "a format and no end": (
        {"messages": USER, "response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"
    ),
    "an unknown format": ({"messages": USER, "response_format": {"type": "xml"}}, "response_format.type"),
    "a grammar": ({"messages": USER, "guided_json": {}}, "guided_json"),
    "an unknown tool choice": ({"messages": USER, "tool_choice": "maybe"}, "tool_choice"),
    "a choice without tools": ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
    "a tool of another kind": ({"messages": USER, "tools": [{"type": "retrieval"}]}, "tools[0].type"),
    "tools without a parser": (
        {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice"
    ),
    "a tool choice of another kind": (
        {"messages": USER, "tool_choice": {"type": "custom", "function": {"name": "f"}}}, "tool_choice.type"
    ),
    "a tool's name with markup": (
        {"messages": USER, "tools": [{"type": "function", "function": {"name": "a>b"}}]},
        "tools[0].function.name",
    ),
    "two tools of one name": (
        {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}] * 2},
        "tools[1].function.name",
    ),
    "a call in the old form": (
        {"messages": [*USER, {"role": "assistant", "function_call": {"name": "f"}}]},
        "messages[1].function_call",
    ),
    "a variable that is no variable": (
        {"messages": USER, "chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"
    ),
    "a pattern that takes minutes": (
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {
            "schema": {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}b"}}}},
        "response_format.json_schema",
    ),
    "unknown effort": ({"messages": USER, "reasoning_effort": "huge"}, "reasoning_effort"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CHATS)
def test_a_bad_chat_names_its_field(server, case):
    body, param = BAD_CHATS[case]
    error = server.error(CHAT, body)
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error" and error["message"] and "\n" not in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "hi", "echo": True}, "echo"),
        ({"prompt": "hi", "best_of": 4}, "best_of"),
        ({"prompt": "hi", "suffix": "x"}, "suffix"),
        ({"prompt": "hi", "logprobs": 99}, "logprobs"),
        ({"prompt": "hi", "seed": 2**70}, "seed"),
        ({"prompt": {"text": "hi"}}, "prompt"),
        ({"prompt": "hi", "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "hi", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_a_bad_completion_names_its_field(server, body, param):
    assert server.error(COMPLETIONS, body)["param"] == param


def test_what_is_too_long_is_refused_with_the_numbers(server):
    error = server.error(COMPLETIONS, {"prompt": [5] * 600})
    assert (
        error["code"] == "context_length_exceeded" and "600" in error["message"] and "512" in error["message"]
    )


def test_bodies_that_are_no_json_object(server):
    for content in (b"{", b"[]", b"5", b"", b"\xff\xfe", b"[" * 100_000, b'{"prompt": NaN}'):
        response = server.http.post(
            COMPLETIONS, content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400, (content[:20], response.text)
        assert response.json()["error"]["message"]


def test_a_body_that_does_not_say_it_is_json(server):
    response = server.http.post(
        COMPLETIONS, content=b'{"prompt": "hi"}', headers={"content-type": "text/plain"}
    )
    assert response.status_code == 400 and "application/json" in response.text


def test_unknown_models_paths_and_methods(server):
    error = server.error(COMPLETIONS, {"model": "gpt", "prompt": "hi"}, status=404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert server.http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    method = server.http.get(COMPLETIONS)
    assert (method.status_code, method.headers["allow"]) == (405, "POST")


def test_fields_without_effect_are_answered_and_named(server):
    body = {"prompt": "hi", "max_tokens": 1, "store": True, "metadata": {}, "echo": False, "x\ny": 1,
            "stream_options": None, "speculation": {"how": 1}}  # fmt: skip
    response = server.post(COMPLETIONS, body)
    assert response.status_code == 200
    assert response.headers["x-paceline-ignored"] == "metadata, speculation.how, store, x?y"
    # A name may be anything; one that ends in a space once cost the connection.
    odd = server.post(COMPLETIONS, {"prompt": "hi", " ": 1, "z ": 1, "": 1})
    assert odd.status_code == 200 and odd.headers["x-paceline-ignored"] == ", ?, z?"
    assert "x-paceline-ignored" not in server.post(COMPLETIONS, {"prompt": "hi", "user": "me"}).headers
    with server.http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as stream:
        assert "store" in stream.headers["x-paceline-ignored"]
        stream.read()


def test_fields_of_messages_and_of_tokenize_are_named_too(server):
    part = [{"type": "text", "text": "hi"}]
    messages = [{"role": "user", "content": part, "mood": "good", "audio": None, "annotations": []}]
    answered = server.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert answered.status_code == 200 and answered.headers["x-paceline-ignored"] == "messages[].mood"
    for path, body in (("/tokenize", {"prompt": "hi"}), ("/detokenize", {"tokens": [5]})):
        assert "x-paceline-ignored" not in server.post(path, body).headers
        assert server.post(path, {**body, "odd": 1}).headers["x-paceline-ignored"] == "odd"
    error = server.error("/tokenize", {"messages": USER, "chat_template": "{{ x }}"})
    assert error["param"] == "chat_template"


def test_variables_that_the_template_never_reads_are_named(server):
    body = {"messages": USER, "max_tokens": 1, "reasoning_effort": "high"}
    answered = server.post(
        CHAT, {**body, "chat_template_kwargs": {"thinking": False, "enable_thinking": True}}
    )
    ignored = set(answered.headers["x-paceline-ignored"].split(", "))
    assert {"chat_template_kwargs.thinking", "reasoning_effort"} <= ignored


@pytest.mark.parametrize(
    ("template", "unread"),
    [
        (
            "{{ messages }}{% if enable_thinking %}x{% endif %}",
            ["chat_template_kwargs.odd", "reasoning_effort"],
        ),
        (
            "{{ reasoning_effort }}{% set odd = 1 %}{{ odd }}{{ enable_thinking }}",
            ["chat_template_kwargs.odd"],
        ),
        ("{% generation %}{{ odd }}{% endgeneration %}", []),  # not to be told: nothing is named
    ],
)
def test_what_a_template_reads(folder, template, unread):
    values = {"enable_thinking": True, "odd": 1}
    body = ChatRequest(messages=USER, chat_template_kwargs=values, reasoning_effort="low")
    assert ChatFormat(load_tokenizer(folder), template).unread(body) == unread
    off = ChatRequest(messages=USER, reasoning_effort="none")
    assert ChatFormat(load_tokenizer(folder), template).unread(off) == []


def test_the_official_client_raises_its_own_errors(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=USER, top_p=7)
    assert bad.value.param == "top_p"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="hi")

"""Whatever a client sends: an answer or a 4xx of OpenAI's shape, never a fault of ours."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeChat,
    TokenizePrompt,
)
from tests.serve.scripted import Scripted

PATHS = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeChat,
    "/detokenize": TokenizePrompt,
}
TEXT = st.text(max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "x"])}, optional={"text": ANYTHING}
)
FUNCTION = st.fixed_dictionaries(
    {"name": TEXT | ANYTHING}, optional={"arguments": ANYTHING, "parameters": ANYTHING}
)
CALL = st.fixed_dictionaries(
    {"type": st.just("function")}, optional={"id": ANYTHING, "function": FUNCTION | ANYTHING}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"])},
    optional={
        "content": TEXT | st.lists(PART, max_size=2) | ANYTHING,
        "tool_calls": st.lists(CALL, max_size=2),
        "reasoning": ANYTHING,
        "name": ANYTHING,
        "tool_call_id": ANYTHING,
    },
)
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "x"])},
    optional={
        "role": ANYTHING,
        "content": ANYTHING,
        "call_id": ANYTHING,
        "name": ANYTHING,
        "output": ANYTHING,
    },
)
GOOD = {
    "messages": st.just([{"role": "user", "content": "hi"}]) | st.lists(MESSAGE, max_size=3) | ANYTHING,
    "prompt": st.just("hi") | st.lists(st.integers(0, 200), max_size=4) | ANYTHING,
    "input": st.just("hi") | st.lists(MESSAGE | ITEM, max_size=3) | ANYTHING,
    "tokens": st.lists(st.integers(-1, 200), max_size=4) | ANYTHING,
    "tools": st.lists(CALL, max_size=2) | ANYTHING,
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | ANYTHING,
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema", "x"])},
        optional={"json_schema": ANYTHING},
    )
    | ANYTHING,
    "model": st.none(),
}


@pytest.fixture(scope="module")
def scripted(folder, tmp_path_factory):
    scripted = Scripted(
        folder, tmp_path_factory.mktemp("template") / "t.jinja", reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder", enable_auto_tool_choice=True,
    )  # fmt: skip
    scripted.says("Hm.</think>Yes.")
    return scripted


@st.composite
def bodies(draw, model):
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    names = st.lists(st.sampled_from([*model.model_fields, "tokens"]) | TEXT, max_size=4, unique=True)
    return {name: draw(GOOD.get(name, ANYTHING)) for name in [*needed, *draw(names)]}


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_is_answered_with_a_fault(scripted, path, data):
    body = json.dumps(data.draw(bodies(PATHS[path]) | ANYTHING)).encode()

    async def send():
        async with httpx2.AsyncClient(transport=scripted.transport, base_url="http://server") as client:
            return await client.post(path, content=body, headers={"content-type": "application/json"})

    response = asyncio.run(send())
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["message"] and {"type", "param", "code"} <= error.keys()

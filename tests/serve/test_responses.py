"""The responses API through the official client: text, streams, reasoning, function calls, conversations."""

from __future__ import annotations

import asyncio
import json

import httpx2
import openai
import pytest

from tests.serve.scripted import Scripted
from tests.serve.test_tools import CALL, EXPECTED, PARAMETERS, TWO_CALLS

TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}


@pytest.fixture(scope="module")
def scripted(folder, tmp_path_factory):
    return Scripted(
        folder, tmp_path_factory.mktemp("template") / "t.jinja", served_model_name="tiny",
        reasoning_parser="qwen3", tool_call_parser="qwen3_coder", enable_auto_tool_choice=True,
    )  # fmt: skip


def ask(scripted, stream=False, **body):
    """One response; of a stream, the events and the response that the client's helper has put together."""

    async def run():
        http = httpx2.AsyncClient(transport=scripted.transport)
        client = openai.AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=http)
        body.setdefault("input", "weather?")
        if not stream:
            return await client.responses.create(model="tiny", **body)
        async with client.responses.stream(model="tiny", **body) as events:
            told = [event async for event in events]
            whole = told[-1].type == "response.completed"  # the helper refuses to give any other
            return told, await events.get_final_response() if whole else None

    return asyncio.run(run())


def test_text_and_reasoning(scripted):
    scripted.says("Hm, hm.\n</think>\n\nIt rains.")
    response = ask(scripted, instructions="be brief", max_output_tokens=50)
    assert response.status == "completed" and response.output_text == "It rains."
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "Hm, hm."
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert "<|im_start|>system\nbe brief<|im_end|>" in scripted.prompt
    assert response.paceline["speculation"]["method"] == "mtp"


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_tells_the_same_in_order(scripted, seed):
    scripted.says(TWO_CALLS, seed=seed)
    told, final = ask(scripted, stream=True, tools=[TOOL])
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == EXPECTED
    assert len({call.call_id for call in calls}) == 2
    kinds = [event.type for event in told]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    assert [event.sequence_number for event in told] == list(range(len(told)))
    text = "".join(event.delta for event in told if event.type == "response.output_text.delta")
    assert text == final.output_text == "Let me see."


def test_an_answer_that_was_cut_off_is_incomplete(scripted):
    scripted.says("Hm.</think>It rai", finish_reason="length")
    response = ask(scripted)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"
    told, _ = ask(scripted, stream=True)
    assert told[-1].type == "response.incomplete"


def test_a_conversation_of_items_is_rendered(scripted):
    scripted.says("</think>ok")
    ask(
        scripted,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {
                "type": "reasoning",
                "id": "r",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "why"}],
            },
            {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Kiel"}'},
            {"type": "function_call_output", "call_id": "c", "output": "rain"},
        ],
    )
    assert '<think>why</think>[get_weather {"city": "Kiel"}]' in scripted.prompt
    assert scripted.prompt.count("<|im_start|>assistant") == 2 and "tool\nrain" in scripted.prompt


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        (
            {
                "instructions": "Be brief.",
                "input": [
                    {"role": "user", "content": "hi"},
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                    {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "1", "output": "3"},
                    {"role": "user", "content": [{"type": "input_image"}]},
                ],
            },
            "input[4].content[0]",
        ),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_what_cannot_be_answered_names_its_field(scripted, body, param):
    with pytest.raises(openai.BadRequestError) as bad:
        ask(scripted, extra_body=body)
    assert bad.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{**TOOL, "parameters": {"default": float("nan")}}]}, "tools[0]"),
        ({"tool_choice": {"type": "function", "name": "f", "odd": float("inf")}}, "tool_choice"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ],
)
def test_what_an_answer_could_not_repeat_is_refused(server, body, param):
    assert server.error("/v1/responses", {"input": "hi", **body})["param"] == param


def test_a_call_is_told_while_it_is_written(scripted):
    scripted.says("</think>" + CALL.format(city="Kiel", days=2), seed=3)
    told, final = ask(scripted, stream=True, tools=[TOOL])
    deltas = [event.delta for event in told if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1 and "".join(deltas) == final.output[-1].arguments

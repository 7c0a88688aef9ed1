"""Reasoning and tool calls over HTTP, through the official client: whole, and streamed in any steps."""

from __future__ import annotations

import asyncio
import json

import httpx2
import openai
import pytest

from tests.serve.scripted import Scripted

USER = [{"role": "user", "content": "weather?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n"
    "<parameter=days>\n{days}\n</parameter>\n</function>\n</tool_call>"
)
TWO_CALLS = (
    "I should ask.\n</think>\n\nLet me see.\n\n"
    + CALL.format(city="Kiel", days=3)
    + "\n"
    + CALL.format(city="Ulm <b>", days=1)
)


@pytest.fixture(scope="module")
def scripted(folder, tmp_path_factory):
    return Scripted(
        folder,
        tmp_path_factory.mktemp("template") / "t.jinja",
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
        enable_auto_tool_choice=True,
    )


def ask(scripted, stream=False, **body):
    """One chat through the official client; a stream is put together by the client's own helper."""

    async def run():
        http = httpx2.AsyncClient(transport=scripted.transport)
        client = openai.AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=http)
        body.setdefault("messages", USER)
        if not stream:
            return (await client.chat.completions.create(model=scripted_model(scripted), **body)).choices[0]
        async with client.chat.completions.stream(model=scripted_model(scripted), **body) as events:
            return (await events.get_final_completion()).choices[0]

    return asyncio.run(run())


def scripted_model(scripted):
    return scripted.client.info.folder


def calls_of(choice):
    return [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or []]


EXPECTED = [
    ("get_weather", {"city": "Kiel", "days": 3}),
    ("get_weather", {"city": "Ulm <b>", "days": 1}),
]


def test_reasoning_content_and_calls_part(scripted):
    scripted.says(TWO_CALLS)
    choice = ask(scripted, tools=[TOOL])
    assert choice.message.reasoning == choice.message.reasoning_content == "I should ask."
    assert choice.message.content == "Let me see."
    assert calls_of(choice) == EXPECTED and choice.finish_reason == "tool_calls"
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert "[tools get_weather]" in scripted.prompt


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_in_any_steps_spells_the_same(scripted, seed):
    scripted.says(TWO_CALLS, seed=seed)
    choice = ask(scripted, stream=True, tools=[TOOL])
    assert choice.message.content == "Let me see."
    assert calls_of(choice) == EXPECTED and choice.finish_reason == "tool_calls"


def test_without_a_choice_of_tools_their_tags_are_text(scripted):
    scripted.says("</think>\n\n" + CALL.format(city="Kiel", days=1))
    choice = ask(scripted, tools=[TOOL], tool_choice="none")
    assert choice.message.tool_calls is None and choice.message.content.startswith("<tool_call>")
    assert choice.finish_reason == "stop"
    choice = ask(scripted)
    assert choice.message.content.endswith("</tool_call>")


def test_one_call_is_enough_where_no_more_are_wanted(scripted):
    scripted.says(TWO_CALLS)
    for stream in (False, True):
        choice = ask(scripted, stream=stream, tools=[TOOL], parallel_tool_calls=False)
        assert calls_of(choice) == EXPECTED[:1] and choice.finish_reason == "tool_calls"
        assert scripted.client.opened[-1].closed


def test_a_call_cut_off_by_the_length_is_still_json(scripted):
    scripted.says("</think>" + CALL.format(city="Kiel", days=3)[:70], finish_reason="length")
    choice = ask(scripted, tools=[TOOL])
    assert choice.finish_reason == "length" and calls_of(choice)[0][0] == "get_weather"


def test_thinking_is_switched_off_by_the_template(scripted):
    scripted.says("Straight to it.")
    thinking = ask(scripted)
    assert thinking.message.content is None and thinking.message.reasoning == "Straight to it."
    for extra in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        choice = ask(scripted, extra_body=extra)
        assert choice.message.content == "Straight to it." and not scripted.prompt.endswith("<think>\n")


def test_reasoning_can_be_left_out(scripted):
    scripted.says("Hm.\n</think>\n\nYes.")
    choice = ask(scripted, extra_body={"include_reasoning": False})
    assert choice.message.content == "Yes." and not hasattr(choice.message, "reasoning")


def test_a_conversation_with_calls_and_reasoning_is_rendered(scripted):
    scripted.says("</think>ok")
    function = {"name": "get_weather", "arguments": '{"city": "Kiel"}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    ask(scripted, messages=messages)
    assert '<think>why</think>[get_weather {"city": "Kiel"}]' in scripted.prompt
    assert "rain" in scripted.prompt

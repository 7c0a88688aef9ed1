"""Strict tools: free text stays free, a call has arguments by its schema. The model knows neither."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("xgrammar")

from paceline.engine.detokenizer import TokenBytes
from paceline.engine.grammar import Grammars
from paceline.engine.tokenizer import load_tokenizer
from tests.serve.harness import running
from tests.tiny import EOS, VOCAB, make_target

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USER = [{"role": "user", "content": "the cat"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Kiel", "Ulm"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SAMPLED = {"temperature": 1.0, "seed": 4, "max_tokens": 120, "parallel_tool_calls": False}
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def tools(*strict):
    return [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": wish}}
        for name, wish in zip(("rain", "sun"), strict, strict=False)
    ]


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """A tiny model whose tags are tokens, as the published models' are."""
    from transformers import AutoTokenizer

    folder = make_target(tmp_path_factory.mktemp("strict") / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.add_tokens(TAGS)
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def server(tagged):
    with running(
        tagged, max_model_len=1024, max_num_seqs=4, tool_call_parser="qwen3_coder",
        enable_auto_tool_choice=True, reasoning_parser="qwen3",
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="module")
def calling(tagged):
    """A bias that makes the model begin calls."""
    return {"logit_bias": {str(load_tokenizer(tagged).backend.token_to_id("<tool_call>")): 60.0}}


def test_a_strict_call_follows_its_schema(server, calling):
    choice = server.chat(tools=tools(True, True), **calling, **SAMPLED)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    value = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] in ("rain", "sun") and set(value) == {"city", "days"}
    assert value["city"].strip() in ("Kiel", "Ulm") and value["days"] in (1, 2)


def test_drafts_and_streams_change_nothing(server, calling):
    body = {"messages": USER, "tools": tools(True, False), **calling, **SAMPLED}
    on = server.post(CHAT, body).json()["choices"][0]
    off = server.post(CHAT, {**body, "speculation": {"enabled": False}}).json()["choices"][0]
    spelled = [[call["function"] for call in choice["message"].get("tool_calls", [])] for choice in (on, off)]
    assert spelled[0] == spelled[1] != [] and on["message"]["content"] == off["message"]["content"]
    deltas = [c["delta"] for chunk in server.stream(CHAT, body) for c in chunk["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(call["arguments"] for call in calls) == spelled[0][0]["arguments"]


def test_without_strict_nothing_is_kept(server, calling):
    body = {"messages": USER, **calling, **SAMPLED}
    free = [server.post(CHAT, {**body, "tools": tools(wish)}).json()["choices"][0] for wish in (False, None)]
    assert free[0]["message"] == free[1]["message"]
    assert all(choice["finish_reason"] == "length" for choice in free)  # a tag behind a tag, and never a call


def test_free_text_is_the_text_without_strict_tools(server, calling):
    # A call would be another text, and special tokens that are no stop have no place in a grammar.
    bias = dict.fromkeys([*calling["logit_bias"], "1", "2"], -100.0)
    body = {"messages": USER, "temperature": 0.8, "seed": 9, "max_tokens": 60, "logit_bias": bias}
    strict, free = (
        server.post(CHAT, {**body, "tools": tools(wish)}).json()["choices"][0] for wish in (True, False)
    )
    assert "tool_calls" not in free["message"] and strict["message"] == free["message"]


def test_responses_keep_strict_too(server, calling):
    flat = [{"type": "function", **tool["function"]} for tool in tools(True)]
    response = server.post(
        RESPONSES, {"input": "the cat", "tools": flat, "max_output_tokens": 120, "temperature": 1.0,
                    "seed": 4, "parallel_tool_calls": False, **calling}
    ).json()  # fmt: skip
    (call,) = [item for item in response["output"] if item["type"] == "function_call"]
    assert json.loads(call["arguments"])["days"] in (1, 2)


def test_the_prompt_does_not_say_strict(server):
    counts = {
        server.post(CHAT, {"messages": USER, "tools": tools(wish), "max_tokens": 1}).json()["usage"][
            "prompt_tokens"
        ]
        for wish in (True, False, None)
    }
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": tools("yes")}, "tools[0].function.strict"),
        ({"tools": tools(True), "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_cannot_be_kept_is_refused(server, more, param):
    assert server.error(CHAT, {"messages": USER, **more})["param"] == param


def test_the_grammar_holds_inside_calls_only(tagged):
    """Token by token: what may come amid text, after the tag, and after the call."""
    from xgrammar import allocate_token_bitmask

    from paceline.config.sampling import SamplingParams
    from paceline.config.serving import Serving
    from paceline.serve.protocol import ChatRequest
    from paceline.serve.readers import Readers
    from paceline.serve.structure import structure_of

    tokenizer = load_tokenizer(tagged)
    table = TokenBytes(tokenizer.backend)
    options = {"tool_call_parser": "qwen3_coder", "enable_auto_tool_choice": True}
    readers = Readers(Serving.of(str(tagged), options, None).server.answer_format(None), tokenizer, table)
    body = ChatRequest(messages=USER, tools=tools(True))
    structure = structure_of(body, SamplingParams(), "", readers)
    state = Grammars(table, VOCAB, [EOS]).start(structure)
    free = len(tokenizer.encode_bare("")) == 0 and range(3, 108)

    def allowed():
        mask = allocate_token_bitmask(1, VOCAB)
        state.fill(mask, 0, [])
        return {i for i in range(VOCAB) if int(mask[0, i >> 5]) >> (i & 31) & 1}

    def take(text):
        assert state.advance(tokenizer.encode_bare(text))

    take("the cat ")
    assert set(free) <= allowed() and EOS in allowed()
    take("<tool_call>")
    assert [table[i] for i in allowed()] == [b"\n"]
    take("\n<function=rain>\n<parameter=city>\n")
    first = {table[i][:1] for i in allowed()}
    assert first <= {b"K", b"U", b"\n", b" ", b"\t"} and EOS not in allowed()
    take("Ulm\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>")
    assert set(free) <= allowed() and EOS in allowed()

"""The chat format: our fast rendering against the template, and what the server reads of it."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from paceline.serve.parsers import ParserOptions, ToolSpec, assemble, make_parser
from paceline.train.synth.dialogue import Dialogue, assistant, user
from paceline.train.synth.mix import GENERATORS
from paceline.train.synth.render import chat_template, pieces, prompt_text

EACH = 60


@pytest.fixture(scope="module")
def reference():
    """Messages as transformers renders them with our template."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    tokenizer.chat_template = chat_template()

    def render(messages, tools=None, **variables):
        return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **variables)

    return render


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_rendering_is_the_templates(name, split, reference):
    for index in range(EACH):
        dialogue = GENERATORS[name](7, index, split)
        text = "".join(piece.text for piece in pieces(dialogue))
        assert text == reference(dialogue.messages, dialogue.tools)
        prompt = reference(
            dialogue.prompt, dialogue.tools, add_generation_prompt=True, enable_thinking=dialogue.thinking
        )
        assert prompt == prompt_text(dialogue)
        assert text.startswith(prompt)


def test_several_turns(reference):
    messages = [
        {"role": "system", "content": " Be kind. "},
        user("a"), assistant("b", "thought"), user("c"), assistant("d", "other thought"),
    ]  # fmt: skip
    dialogue = Dialogue(messages, "x", thinking=True)
    text = "".join(piece.text for piece in pieces(dialogue))
    assert text == reference(messages)
    assert "<|im_start|>assistant\nb<|im_end|>" in text, "earlier answers lose their think block"
    assert [piece.text for piece in pieces(dialogue) if piece.learn] == [
        "other thought\n</think>\n\nd<|im_end|>"
    ]
    assert "<think>\nthought\n</think>\n\nb" in reference(messages, preserve_thinking=True)


def test_reasoning_inside_the_content_is_split_off(reference):
    whole = reference([user("a"), {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}])
    assert whole == reference([user("a"), assistant("b", "hm")])


def test_results_of_tools_share_a_turn(reference):
    calls = assistant("", None, [("f", {"n": 1, "flag": True, "items": ["é"]}), ("g", {})])
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    messages = [user("a"), calls, *results, assistant("done")]
    text = "".join(piece.text for piece in pieces(Dialogue(messages, "x")))
    assert text == reference(messages)
    assert text.count("<|im_start|>user") == 2
    assert '["é"]' in text and "\ntrue\n" in text


@pytest.mark.parametrize("messages", [
    [{"role": "assistant", "content": "b"}],
    [user("a"), {"role": "system", "content": "late"}],
    [user("a"), {"role": "developer", "content": "b"}],
    [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
])  # fmt: skip
def test_what_cannot_be_rendered_is_refused(messages, reference):
    with pytest.raises(Exception, match=r"there is no|must come first|reads text only"):
        reference(messages)


def test_parts_of_text(reference):
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert reference([parts]) == reference([user("ab")])


def test_the_server_reads_the_calls():
    found = 0
    for index in range(EACH):
        dialogue = GENERATORS["tools"](3, index, "train")
        calls = dialogue.facts["calls"]
        tools = tuple(
            ToolSpec(tool["function"]["name"], tool["function"]["parameters"]) for tool in dialogue.tools
        )
        answer = pieces(dialogue)[-2].text.removesuffix("<|im_end|>")
        options = ParserOptions(in_reasoning=dialogue.thinking, tools=tools)
        parser = make_parser("qwen3", "qwen3_coder", options, None)
        message = assemble([*parser.feed([], answer), *parser.finish()])
        read = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
        assert read == [(name, arguments) for name, arguments in calls]
        assert all(call.complete for call in message.tool_calls)
        assert bool(message.reasoning) == dialogue.thinking
        found += len(calls)
    assert found > EACH // 2

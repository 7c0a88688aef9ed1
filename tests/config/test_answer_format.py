"""Reasoning and tool calls: the command line decides, and what it leaves open the chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.server import AnswerFormat, ServerConfig
from paceline.errors import ConfigError
from paceline.serve.service import model_template

PLAIN = "{{ messages[0].content }}"
JSON_CALLS = '<think></think><tool_call>{"name": ...}</tool_call>'
XML_CALLS = "<think></think><tool_call><function=NAME>"
DEMO = Path(__file__).parents[2] / "demo/target"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, (False, False, False)),
        (PLAIN, (False, False, False)),
        (JSON_CALLS, (True, False, False)),
        (XML_CALLS, (True, True, True)),
    ],
)
def test_the_template_decides_what_was_left_open(template, expected):
    assert ServerConfig().answer_format(template) == AnswerFormat(*expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reasoning_parser": "none"}, (False, True, True)),
        ({"tool_call_parser": "none"}, (True, False, False)),
        ({"enable_auto_tool_choice": False}, (True, True, False)),
        ({"tool_call_parser": "qwen3_coder"}, (True, True, False)),
        ({"tool_call_parser": "qwen3_xml", "enable_auto_tool_choice": True}, (True, True, True)),
    ],
)
def test_the_command_line_wins(given, expected):
    assert ServerConfig(**given).answer_format(XML_CALLS) == AnswerFormat(*expected)


@pytest.mark.parametrize("given", [{}, {"tool_call_parser": "none"}])
def test_tools_that_could_not_be_read_are_refused(given):
    with pytest.raises(ConfigError, match="needs --tool-call-parser"):
        ServerConfig(enable_auto_tool_choice=True, **given).answer_format(JSON_CALLS)


def test_the_template_of_a_folder(tmp_path):
    assert model_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    assert model_template(tmp_path) == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert model_template(tmp_path) == "new"


def test_the_demo_needs_no_flag():
    assert ServerConfig().answer_format(model_template(DEMO)) == AnswerFormat(True, True, True)

"""Parsers by the names that the command line knows."""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import ConfigError
from paceline.serve.parsers.base import OutputParser, ParserOptions
from paceline.serve.parsers.qwen3 import Qwen3Parser
from paceline.serve.parsers.tags import TagTokens

REASONING_PARSERS = ("qwen3",)
TOOL_CALL_PARSERS = ("qwen3_coder", "qwen3_xml")
"""Two names of one format."""


def check_names(reasoning: str | None, tool_calls: str | None) -> None:
    """Raise `ConfigError` if there is no such parser. None means: do not parse this."""
    for key, name, known in (
        ("reasoning_parser", reasoning, REASONING_PARSERS),
        ("tool_call_parser", tool_calls, TOOL_CALL_PARSERS),
    ):
        if name is not None and name not in known:
            raise ConfigError(f"{key}: there is no {name!r}, use {' or '.join(known)}", key=key)


def make_parser(
    reasoning: str | None,
    tool_calls: str | None,
    options: ParserOptions,
    tokens: TagTokens | None,
    *,
    skip_special_tokens: bool = True,
) -> OutputParser:
    """A parser for one choice. Without a parser's name its tags are text, whatever `options` say."""
    check_names(reasoning, tool_calls)
    options = replace(
        options,
        reasoning=options.reasoning and reasoning is not None,
        tools=() if tool_calls is None else options.tools,
    )
    return Qwen3Parser(options, tokens, skip_special_tokens=skip_special_tokens)

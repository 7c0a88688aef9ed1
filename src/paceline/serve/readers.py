"""Which parser reads a choice: the one that the server was started with, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline.serve.errors import ApiError
from paceline.serve.parsers.base import ContentDelta, Event, OutputParser, ParserOptions, ToolSpec
from paceline.serve.parsers.qwen3 import Qwen3Parser
from paceline.serve.parsers.tags import CLOSE_THINK, TAGS, TagTokens, opens_reasoning

if TYPE_CHECKING:
    from paceline.config.server import AnswerFormat
    from paceline.engine.detokenizer import TokenBytes
    from paceline.engine.tokenizer import TextTokenizer
    from paceline.serve.protocol import ChatRequest

MakeParser = Callable[[], OutputParser]


class PlainParser:
    """All text is content."""

    done = False

    def feed(self, token_ids: Sequence[int], text: str) -> list[Event]:
        """Take in one increment; see `OutputParser`."""
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []


class Readers:
    """Makes the parsers of one server's chat answers."""

    def __init__(self, answers: AnswerFormat, tokenizer: TextTokenizer, table: TokenBytes):
        """answers: what is looked for."""
        self._answers = answers
        self._tokens = TagTokens.of(tokenizer.backend, table)

    def parser(self, body: ChatRequest, prompt: str, *, skip_special_tokens: bool) -> MakeParser:
        """How each choice of a request is read. Raises `ApiError` for a tool choice that cannot be had."""
        tools = self._tools(body)
        reasoning = self._answers.reasoning
        if not reasoning and not tools:
            return PlainParser
        options = ParserOptions(
            reasoning=reasoning,
            in_reasoning=reasoning and opens_reasoning(prompt),
            tools=tools,
            parallel_tool_calls=body.parallel_tool_calls is not False,
        )
        return lambda: Qwen3Parser(options, self._tokens, skip_special_tokens=skip_special_tokens)

    @property
    def tags_are_tokens(self) -> bool:
        """Whether every tag is a token of the tokenizer."""
        return len(self._tokens.marks) == len(TAGS)

    def check_parser(self) -> None:
        """Raise `ApiError` where calls could not be read."""
        if not self._answers.tool_calls:
            raise ApiError(
                "a forced call needs a server started with --tool-call-parser", param="tool_choice"
            )

    def end_of_reasoning(self, prompt: str, param: str) -> int | None:
        """The token that ends the reasoning which an answer begins with; None where it begins with none.

        param: the field that needs to know. Raises `ApiError` where no single token ends it.
        """
        if not self._answers.reasoning or not opens_reasoning(prompt):
            return None
        for token, mark in self._tokens.marks.items():
            if mark == CLOSE_THINK:
                return token
        raise ApiError(
            f"{param} needs chat_template_kwargs: {{enable_thinking: false}} with this model", param=param
        )

    def _tools(self, body: ChatRequest) -> tuple[ToolSpec, ...]:
        """Tools whose calls are looked for."""
        choice = body.tool_choice
        if not body.tools:
            if choice not in (None, "none", "auto"):
                raise ApiError("tool_choice needs tools", param="tool_choice")
            return ()
        if choice == "none":
            return ()
        if choice in (None, "auto"):
            self._check_auto()
        return tuple(_spec(tool["function"]) for tool in body.tools)

    def _check_auto(self) -> None:
        if not (self._answers.auto_tool_choice and self._answers.tool_calls):
            raise ApiError(
                "tools need a server started with --enable-auto-tool-choice and --tool-call-parser "
                "(or tool_choice: 'none')",
                param="tool_choice",
            )


def _spec(function: dict[str, Any]) -> ToolSpec:
    return ToolSpec(function["name"], function.get("parameters") or {})

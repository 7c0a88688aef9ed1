"""The form that an answer must have, out of `response_format` and `tool_choice`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from paceline.engine.grammar import NEEDS_XGRAMMAR, Structure
from paceline.serve.errors import ApiError
from paceline.serve.protocol import NamedTool
from paceline.serve.schema_bounds import bounded, unfollowed

if TYPE_CHECKING:
    from paceline.config.sampling import SamplingParams
    from paceline.serve.protocol import ChatRequest
    from paceline.serve.readers import Readers

TAG_MODEL = "qwen_3_coder"
"""xgrammar's name of the tool call form that the parsers read."""
CLASHING = ("ignore_eos", "min_tokens", "allowed_token_ids", "bad_words")
"""Sampling fields that could leave a form without any id that may come next."""


def structure_of(
    body: ChatRequest, params: SamplingParams, prompt: str, readers: Readers
) -> Structure | None:
    """The form of a request's answer; None where it is free. Raises `ApiError` for one that cannot be had."""
    asked = _response_format(body) or _tool_choice(body, readers) or _strict_tools(body, readers)
    if asked is None:
        return None
    kind, text, param = asked
    for name in CLASHING:
        if getattr(params, name):
            raise ApiError(f"{name} cannot be combined with {param}", param=name)
    if find_spec("xgrammar") is None:
        raise ApiError(NEEDS_XGRAMMAR, param=param)
    if kind == "structural_tag":
        text = _calls_tag(body, readers)
    return Structure(kind, text, param, readers.end_of_reasoning(prompt, param))


def _response_format(body: ChatRequest) -> tuple[Any, str, str] | None:
    wish = body.response_format
    if wish is None or wish.type == "text":
        return None
    if _forced(body):
        raise ApiError("response_format cannot be combined with a forced tool call", param="tool_choice")
    if wish.type == "json_object":
        return "json", "", "response_format"
    schema = (wish.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        param = "response_format.json_schema.schema"
        raise ApiError(f"{param} must be a JSON schema", param=param)
    text = bounded(schema, "response_format.json_schema")
    ignored = unfollowed(schema)
    if ignored is not None:
        raise ApiError(
            f"response_format.json_schema: no answer can be held to {ignored!r} while it is written: leave "
            "it out and check the answer",
            param="response_format.json_schema",
        )
    return "json_schema", text, "response_format.json_schema"


def _forced(body: ChatRequest) -> bool:
    return body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool)


def _tool_choice(body: ChatRequest, readers: Readers) -> tuple[Any, str, str] | None:
    if not _forced(body):
        return None
    if not body.tools:
        raise ApiError("tool_choice needs tools", param="tool_choice")
    readers.check_parser()
    bounded(body.tools, "tools")
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        names = [tool["function"]["name"] for tool in body.tools]
        if choice.function.name not in names:
            raise ApiError(
                f"tool_choice names {choice.function.name!r}; there is {', '.join(names)}",
                param="tool_choice.function.name",
            )
    return "structural_tag", "", "tool_choice"


def _strict_tools(body: ChatRequest, readers: Readers) -> tuple[Any, str, str] | None:
    """The model may call or not; a call of a strict tool has arguments by the tool's schema."""
    if body.tool_choice not in (None, "auto") or not body.tools:
        return None
    if not any(_is_strict(tool) for tool in body.tools):
        return None
    readers.check_parser()
    bounded(body.tools, "tools")
    return "structural_tag", "", "tools"


def _is_strict(tool: dict[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def _calls_tag(body: ChatRequest, readers: Readers) -> str:
    """The form of calls, with arguments by their tools' schemas: of one or more where they are forced, else
    of those that the model begins amid free text."""
    from xgrammar import get_model_structural_tag

    choice, tools = body.tool_choice, body.tools or []
    named = isinstance(choice, NamedTool)
    if not _forced(body):  # arguments of a tool that is not strict stay the model's own affair
        tools = [{**tool, "function": {**tool["function"], "strict": _is_strict(tool)}} for tool in tools]
    try:
        tag = get_model_structural_tag(
            TAG_MODEL,
            tools=tools,
            tool_choice={"type": "function", "function": {"name": choice.function.name}}
            if isinstance(choice, NamedTool)
            else choice or "auto",
            reasoning="disabled",
            exclude_special_tokens=_forced(body),  # free text stays as it would be without tools
            max_whitespace_cnt=1,
            parallel_tool_calls=not named and body.parallel_tool_calls is not False,
            token_markers=readers.tags_are_tokens,
        )
    except ValueError as error:
        raise ApiError(f"tools: {' '.join(str(error).split())[:300]}", param="tools") from None
    return str(tag.model_dump_json())

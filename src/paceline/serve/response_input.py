"""`POST /v1/responses` as a chat request: items become messages, flat tools become nested ones."""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.serve.errors import ApiError
from paceline.serve.protocol import ChatRequest, Generate, ResponsesRequest

SHARED = tuple(name for name in Generate.model_fields if name not in ("n", "max_tokens", "stream_options"))
"""Fields that mean the same in both APIs."""


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """The chat request that asks for the same. Raises `ApiError` that names the field of *this* API."""
    if body.n not in (None, 1):
        raise ApiError("a response has one choice: leave n out", param="n")
    values: dict[str, Any] = {name: getattr(body, name) for name in SHARED}
    values |= {
        "messages": [message for _, message in _messages(body)],
        "tools": None if body.tools is None else [_tool(i, tool) for i, tool in enumerate(body.tools)],
        "tool_choice": _tool_choice(body.tool_choice),
        "max_completion_tokens": body.max_tokens
        if body.max_output_tokens is None
        else body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format(body),
        "chat_template_kwargs": body.chat_template_kwargs,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
    }
    return ChatRequest.model_validate(values)


def rename(error: ApiError, body: ResponsesRequest) -> ApiError:
    """An error of the chat request, with the field's name in this API."""
    message = _MESSAGE.match(error.param or "")
    if message is not None:
        origin = origins(body)[int(message[1])]
        text = str(error).replace(message[0], origin)
        return ApiError(
            text, error.status, param=origin + (error.param or "")[message.end() :], code=error.code
        )
    if error.param:
        for theirs, ours in _RENAMED:
            if error.param.startswith(theirs):
                error.param = ours + error.param.removeprefix(theirs)
                break
    return error


_MESSAGE = re.compile(r"messages\[(\d+)\]")
_RENAMED = (
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
)


def origins(body: ResponsesRequest) -> list[str]:
    """Of each message of `as_chat`, the field that it begins with: `instructions`, `input` or `input[i]`."""
    return [origin for origin, _ in _messages(body)]


def _messages(body: ResponsesRequest) -> list[tuple[str, dict[str, Any]]]:
    """Messages, each with where it begins in the request."""
    messages: list[dict[str, Any]] = []
    names: list[str] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
        names.append("instructions")
    if isinstance(body.input, str):
        return [*zip(names, messages, strict=True), ("input", {"role": "user", "content": body.input})]
    for index, item in enumerate(body.input):
        _add(messages, f"input[{index}]", item)
        names += [f"input[{index}]"] * (len(messages) - len(names))
    return list(zip(names, messages, strict=True))


def _add(messages: list[dict[str, Any]], where: str, item: dict[str, Any]) -> None:
    """Append an item. What the model said in one turn comes as several items and is one message."""
    kind = item.get("type") or "message"
    if kind == "message" and item.get("role") != "assistant":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "message":
        turn = _turn(messages)
        turn["content"] = (turn["content"] or "") + _text(item.get("content"), where)
    elif kind == "reasoning":
        _turn(messages)["reasoning"] = _text(item.get("content") or item.get("summary"), where)
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _turn(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = _text(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    else:
        raise ApiError(f"{where}.type {kind!r} is not supported", param=f"{where}.type")


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that is being put together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    """The text of an item: a string, or parts with a text each."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            param = f"{where}.content[{index}]"
            raise ApiError(f"{param}: this server reads text parts only", param=param)
    return "".join(text for text in texts if text)


def _check_json(value: Any, param: str) -> None:
    """Refuse what the answer, which repeats it, could not hold: NaN, halves of characters, endless depth."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise ApiError(f"{param} is no JSON", param=param) from None


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    _check_json(tool, f"tools[{index}]")
    if tool.get("type") != "function":
        param = f"tools[{index}].type"
        raise ApiError(f"{param} must be 'function': this server runs no tools itself", param=param)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _tool_choice(choice: Any) -> Any:
    _check_json(choice, "tool_choice")
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise ApiError("tool_choice must be auto, none, required or a function's name", param="tool_choice")


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    wish = body.text.format if body.text else None
    if wish is None:
        return None
    if wish.type == "json_schema":
        return {"type": wish.type, "json_schema": {"schema": wish.json_schema_}}
    return {"type": wish.type}

"""Chat messages to a prompt: what OpenAI's API allows, put into the form that chat templates expect."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError, meta

from paceline.errors import RequestError
from paceline.serve.errors import ApiError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from paceline.engine.tokenizer import TextTokenizer
    from paceline.serve.protocol import ChatTemplateFields

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of a request, and what templates call them."""

_EFFORT = {"none": "enable_thinking"}
"""Efforts that are another variable of templates."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")
"""Models write a name between marks of their own, such as `<function=NAME>`, and it must come back whole."""


class ChatFormat:
    """Renders the messages of one model's requests."""

    def __init__(self, tokenizer: TextTokenizer, template: str | None):
        """`template` is Jinja source that replaces the model's own."""
        self._tokenizer, self._template = tokenizer, template
        signature = inspect.signature(tokenizer.render_chat)
        self._reserved = {*signature.parameters, "self", "conversation", "chat_template", "tokenize"}
        self._read = _variables_of(template or tokenizer.chat_template)

    @property
    def available(self) -> bool:
        """Whether there is a template, so that messages can be rendered at all."""
        return self._template is not None or self._tokenizer.has_chat_template

    def render(self, body: ChatTemplateFields) -> str:
        """The prompt of a request, as text. Raises `ApiError` that names what cannot be rendered."""
        messages = [_message(i, message) for i, message in enumerate(body.messages)]
        if not messages:
            raise ApiError("messages is empty: give at least one", param="messages")
        tools = _tools(body.tools or [])
        extend = bool(body.continue_final_message)
        if extend and body.add_generation_prompt:
            raise ApiError(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
            )
        answer = not extend if body.add_generation_prompt is None else body.add_generation_prompt
        try:
            return self._tokenizer.render_chat(
                messages,
                tools=tools or None,
                template=self._template,
                add_generation_prompt=answer,
                continue_final_message=extend,
                **self._variables(body),
            )
        except RequestError as error:
            raise ApiError(str(error), param=error.param) from None

    def unread(self, body: BaseModel) -> list[str]:
        """Fields of a request for variables that the template never looks at."""
        if self._read is None:
            return []
        variables = getattr(body, "chat_template_kwargs", None) or {}
        names = [f"chat_template_kwargs.{name}" for name in variables if name not in self._read]
        effort = getattr(body, "reasoning_effort", None)
        if effort is not None and _EFFORT.get(effort, "reasoning_effort") not in self._read:
            names.append("reasoning_effort")
        return names

    def encode(self, body: ChatTemplateFields) -> tuple[str, list[int]]:
        """The prompt of a request, as text and as token ids."""
        text = self.render(body)
        try:
            return text, self._tokenizer.encode_bare(text)
        except RequestError as error:
            raise ApiError(str(error), param="messages") from None

    def _variables(self, body: ChatTemplateFields) -> dict[str, Any]:
        variables = dict(body.chat_template_kwargs or {})
        for name in variables:
            if name in self._reserved:
                raise ApiError(
                    f"chat_template_kwargs may not set {name!r}: it has a field of its own",
                    param=f"chat_template_kwargs.{name}",
                )
        if body.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
        elif body.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", body.reasoning_effort)
        return variables


def _variables_of(template: str | None) -> frozenset[str] | None:
    """Names that a template reads from outside; None where that cannot be told."""
    if template is None:
        return None
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # only read: nothing is run
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(template)))
    except TemplateError:  # tags of transformers' own
        return None


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    where = f"messages[{index}]"
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError(f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role")
    known: dict[str, Any] = {"role": ROLES[role], "content": _content(where, message.get("content"))}
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            known[name] = _text(message[name], f"{where}.{name}")
    if role == "assistant":
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        if reasoning is not None:
            known["reasoning_content"] = _text(reasoning, f"{where}.reasoning")
        calls = message.get("tool_calls")
        if calls:
            known["tool_calls"] = _calls(f"{where}.tool_calls", calls)
    elif message.get("content") is None:
        raise ApiError(f"{where}.content is missing", param=f"{where}.content")
    return known


def _content(where: str, content: Any) -> str:
    """The text of a message; parts are put together as the template would."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"{where}.content must be a text or a list of parts", param=f"{where}.content")
    texts = []
    for index, part in enumerate(content):
        here = f"{where}.content[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            raise ApiError(f"{here}: this server reads text parts only, not {kind!r}", param=here)
        texts.append(_text(part.get("text"), f"{here}.text"))
    return "".join(texts)


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Tool calls of an earlier answer. Templates want the arguments as an object, the API has JSON text."""
    if not isinstance(calls, list):
        raise ApiError(f"{where} must be a list", param=where)
    known = []
    for index, call in enumerate(calls):
        here = f"{where}[{index}].function"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ApiError(f"{here} is missing", param=here)
        name = _text(function.get("name"), f"{here}.name")
        arguments = _arguments(function.get("arguments"))
        known.append({"type": "function", "function": {"name": name, "arguments": arguments}})
        if isinstance(call.get("id"), str):
            known[-1]["id"] = call["id"]
    return known


def _arguments(value: Any) -> dict[str, Any]:
    """Arguments as an object. An answer that was cut off left half of one, which clients send back as it is:
    the model then sees that text under one name, rather than the client an error that it cannot mend."""
    if isinstance(value, dict):
        return value
    try:
        parsed = json.loads(value) if isinstance(value, str) and value.strip() else {}
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": value}


def _tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        checked = _tool(index, tool)
        name = checked["function"]["name"]
        if name in known:
            raise ApiError(
                f"tools[{index}].function.name: {name!r} stands twice", param=f"tools[{index}].function.name"
            )
        known[name] = checked
    return list(known.values())


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    where = f"tools[{index}]"
    if tool.get("type") != "function":
        raise ApiError(f"{where}.type must be 'function'", param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise ApiError(f"{where}.function is missing", param=f"{where}.function")
    if not _TOOL_NAME.fullmatch(_text(function.get("name"), f"{where}.function.name")):
        raise ApiError(
            f"{where}.function.name must be 1 to 128 letters, digits and any of _ . : / -",
            param=f"{where}.function.name",
        )
    if not isinstance(function.get("parameters"), dict | None):
        raise ApiError(
            f"{where}.function.parameters must be a JSON schema", param=f"{where}.function.parameters"
        )
    if not isinstance(function.get("strict"), bool | None):
        raise ApiError(f"{where}.function.strict must be a boolean", param=f"{where}.function.strict")
    # `strict` tells the server what to keep, not the model: the prompt is the same with it and without.
    return {**tool, "function": {name: value for name, value in function.items() if name != "strict"}}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ApiError(f"{where} must be a text", param=where)
    return value

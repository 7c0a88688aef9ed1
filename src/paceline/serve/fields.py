"""Fields that a request may carry and that do nothing here: which are named and which are refused.

Losing a field that changes the text would give wrong answers in silence, so those are refused unless their
value is the one that changes nothing. All others are answered and named in a header.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from paceline.serve.errors import ApiError

HEADER = "x-paceline-ignored"

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "background": (False,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "conversation": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "modalities": (["text"],),
    "previous_response_id": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI's and vLLM's API that would change the text, and the values (beside null) that do not. An
endpoint that knows one of them, such as chat completions `tools`, reads it and does not look here."""

MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "reasoning_content"}
)
"""What is read of a message."""
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {"audio": (), "function_call": ()}
"""What a message may not hold, as it would be missing in the prompt; see `NEUTRAL`."""


def ignored_fields(body: BaseModel) -> list[str]:
    """Names of the fields without effect, nested ones with dots. Raises `ApiError` for a refused one."""
    names = _without_effect(body.model_extra or {}, NEUTRAL, "")
    for name in type(body).model_fields:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            names += _nested(value, name)
    messages = getattr(body, "messages", None)
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        more = {k: v for k, v in message.items() if k not in MESSAGE_FIELDS and v not in (None, [], {})}
        _without_effect(more, MESSAGE_NEUTRAL, f"messages[{index}].")
        names += [f"messages[].{name}" for name in more]
    return list(dict.fromkeys(names))


def _without_effect(more: dict[str, Any], neutral: dict[str, tuple[Any, ...]], where: str) -> list[str]:
    names = []
    for name, value in more.items():
        if name not in neutral:
            names.append(name)
        elif value is not None and value not in neutral[name]:
            raise ApiError(
                f"{where}{name} is not supported here, and would change the text: leave it out",
                param=f"{where}{name}",
            )
    return names


def _nested(body: BaseModel, where: str) -> list[str]:
    names = [f"{where}.{name}" for name in body.model_extra or {}]
    for name in type(body).model_fields:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            names += _nested(value, f"{where}.{name}")
    return names


def header_value(names: list[str]) -> str:
    """The names as a header: only what a header may hold, spaces at its ends not among it, and not more than
    is useful."""
    safe = ["".join(c if "!" <= c <= "~" else "?" for c in name)[:64] for name in names]
    return ", ".join(sorted(set(safe))[:32])


def param_of(location: tuple[Any, ...], body: Any, *, missing: bool = False) -> str | None:
    """The path of a field, such as `messages[0].role`, from pydantic's location and the body itself.

    A location also names the branches of unions; those are no part of the body and are left out.
    missing: the location's last name is that of a field which the body lacks.
    """
    path, value = "", body
    for position, part in enumerate(location):
        lacks = missing and position == len(location) - 1
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
        elif isinstance(part, str) and isinstance(value, dict) and (part in value or lacks):
            path, value = f"{path}.{part}" if path else part, value.get(part)
    return path or None

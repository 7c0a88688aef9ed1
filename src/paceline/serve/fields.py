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
    "conversation": (),
    "best_of": (1,),
    "chat_template": (),
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
    "modalities": (["text"],),
    "previous_response_id": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI's and vLLM's API that would change the text, and the values (beside null) that do not."""


def ignored_fields(body: BaseModel) -> list[str]:
    """Names of the fields without effect, nested ones with dots. Raises `ApiError` for a refused one."""
    names = []
    for name, value in (body.model_extra or {}).items():
        if name in NEUTRAL:
            if value is not None and value not in NEUTRAL[name]:
                raise ApiError(
                    f"{name} is not supported, and would change the text: leave it out", param=name
                )
        else:
            names.append(name)
    for name in type(body).model_fields:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            names += [f"{name}.{inner}" for inner in value.model_extra or {}]
    return names


def header_value(names: list[str]) -> str:
    """The names as a header: only what a header may hold, spaces at its ends not among it, and not more than
    is useful."""
    safe = ["".join(c if "!" <= c <= "~" else "?" for c in name)[:64] for name in names]
    return ", ".join(sorted(set(safe))[:32])


def param_of(location: tuple[Any, ...], body: Any) -> str | None:
    """The path of a field, such as `messages[0].role`, from pydantic's location and the body itself.

    A location also names the branches of unions; those are no part of the body and are left out.
    """
    path, value = "", body
    for position, part in enumerate(location):
        last = position == len(location) - 1
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
        elif isinstance(part, str) and isinstance(value, dict) and (part in value or last):
            path, value = f"{path}.{part}" if path else part, value.get(part)
    return path or None

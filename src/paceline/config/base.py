"""The base of every configuration model: frozen, strict, and clear about what went wrong.

A key that nobody knows is an error that names it and what is allowed; a value out of range names its key and
its range. Nothing is dropped in silence, and nothing is coerced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from paceline.errors import ConfigError

_MOST_SHOWN = 80


class StrictModel(BaseModel):
    """A configuration model. Construction raises `ConfigError`, with one line that names the key."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", validate_default=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_config_error(type(self), error) from None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Build the model from a plain mapping, such as one read from JSON."""
        return cls(**values)


def unknown_key_message(key: str, allowed: Iterable[str], what: str) -> str:
    """Say that `what` has no `key`: the nearest name, if one is near, and all that are allowed."""
    names = sorted(allowed)
    near = get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    return f"{what} has no key {key!r}{hint} Allowed: {', '.join(names)}"


def _as_config_error(model: type[BaseModel], error: ValidationError) -> ConfigError:
    """Turn pydantic's first complaint into one line about one key."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"]) or None
    what = model.__name__
    if detail["type"] == "extra_forbidden":
        return ConfigError(unknown_key_message(str(key), model.model_fields, what), key=key)
    if detail["type"] == "missing":
        return ConfigError(f"{what} needs the key {key!r}: {_describe(model, key)}", key=key)
    if detail["type"] == "value_error":
        return ConfigError(_plain(detail["msg"]), key=key)
    return ConfigError(f"{what}.{key} = {_shown(detail['input'])}: {_wanted(detail)}", key=key)


def _shown(value: Any) -> str:
    """A value as Python writes it, shortened: a request may hold megabytes of it."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _describe(model: type[BaseModel], key: str | None) -> str:
    field = model.model_fields.get(key or "")
    return (field.description if field else None) or "it has no default"


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")


def _wanted(detail: ErrorDetails) -> str:
    """What is allowed, in the words of the constraint that failed."""
    message = detail["msg"].removeprefix("Input ")
    context = detail.get("ctx") or {}
    if detail["type"] == "literal_error":
        return f"must be one of {context['expected']}"
    return message[0].lower() + message[1:]

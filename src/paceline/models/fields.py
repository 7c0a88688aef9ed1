"""Typed reading of a model's `config.json`: every wrong field is one line that names file, field and
remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from paceline.errors import CheckpointError, ModelError, UnsupportedModelError
from paceline.layers.rotary import Llama3Scaling, RopeSpec, YarnScaling

MAX_LAYERS = 10_000
"""More are a slip of the pen, and listing their tensors would take forever."""

T = TypeVar("T")
_ABSENT: Any = object()


class Fields:
    """A JSON object, read field by field; a field may live in one of several nested objects.

    `Fields(file, inner, outer)` looks a name up in `inner` first, then in `outer`. A null counts as absent,
    as it does in transformers.
    """

    def __init__(self, origin: str, *objects: Mapping[str, Any]) -> None:
        self.origin = origin
        self._objects = objects

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value, or `default` where it is absent or null."""
        for obj in self._objects:
            if obj.get(name) is not None:
                return obj[name]
        return default

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A nested object; empty where it is absent."""
        return self._checked(name, {}, "an object", lambda value: isinstance(value, Mapping))

    def size(
        self, name: str, default: int = _ABSENT, *, least: int = 1, most: int = torch.iinfo(torch.int32).max
    ) -> int:
        """A whole number from `least` to `most`."""
        what = f"a {'positive whole number' if least == 1 else f'whole number >= {least}'}, at most {most}"
        return self._checked(name, default, what, lambda v: _is_int(v) and least <= v <= most)

    def index(self, name: str, default: int = _ABSENT) -> int:
        """A whole number that is not negative."""
        return self._checked(name, default, "a whole number >= 0", lambda v: _is_int(v) and v >= 0)

    def number(self, name: str, default: float = _ABSENT) -> float:
        """A positive, finite number."""
        return float(self._checked(name, default, "a positive number", _is_positive))

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        return self._checked(name, default, "true or false", lambda value: isinstance(value, bool))

    def optional_flag(self, name: str) -> bool | None:
        """true, false, or None where it is absent."""
        return None if self.get(name) is None else self.flag(name)

    def indices(self, name: str) -> tuple[int, ...] | None:
        """A non-empty list of whole numbers >= 0, or None where it is absent."""

        def good(value: Any) -> bool:
            return isinstance(value, list) and bool(value) and all(_is_int(i) and i >= 0 for i in value)

        return tuple(self._checked(name, (), "a non-empty list of whole numbers >= 0", good)) or None

    def names(self, name: str) -> list[str]:
        """A list of strings; empty where it is absent."""

        def good(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)

        return list(self._checked(name, [], "a list of strings", good))

    def require(self, name: str, allowed: Iterable[Any], default: Any) -> None:
        """Refuse a value that this engine does not compute.

        Raises: UnsupportedModelError naming the field, its value and what is allowed.
        """
        value, allowed = self.get(name, default), tuple(allowed)
        if value not in allowed:
            options = " or ".join(repr(option) for option in allowed)
            raise UnsupportedModelError(f"{self.origin}: {name} is {value!r}; paceline runs {options}")

    def _checked(self, name: str, default: T, what: str, good: Callable[[Any], bool]) -> T:
        value = self.get(name, default)
        if value is _ABSENT:
            raise CheckpointError(f"{self.origin}: field {name} is missing (expected {what})")
        if value is not default and not good(value):
            raise CheckpointError(f"{self.origin}: field {name} is {value!r}, expected {what}")
        return value


def layer_types(
    fields: Fields, layers: int, allowed: Iterable[str], default: tuple[str, ...]
) -> tuple[str, ...]:
    """The `layer_types` list, checked for length and kinds; `default` where it is absent.

    Raises: CheckpointError for a list of another length, UnsupportedModelError for an unknown kind.
    """
    kinds = fields.get("layer_types", default)
    if not isinstance(kinds, list | tuple) or len(kinds) != layers:
        raise CheckpointError(
            f"{fields.origin}: layer_types must be a list of num_hidden_layers = {layers} names"
        )
    allowed = tuple(allowed)
    for kind in kinds:
        if kind not in allowed:
            options = ", ".join(allowed)
            raise UnsupportedModelError(
                f"{fields.origin}: layer type {kind!r} is unknown; paceline runs {options}"
            )
    return tuple(kinds)


def rope_spec(
    fields: Fields,
    head_dim: int,
    max_position: int,
    default_partial: float,
    error: type[ModelError] = CheckpointError,
    default_theta: float | None = None,
) -> RopeSpec:
    """Read rotary parameters from `rope_parameters`, `rope_scaling` (the older name) or the top level.

    `default_partial` is the rotated share of a head where `partial_rotary_factor` is absent. A missing theta
    is an error where there is no `default_theta`: a wrong one gives plausible text that is not the model's.

    Raises: `error` for a missing theta, UnsupportedModelError for a rope type other than default, yarn and
    llama3.
    """
    rope = Fields(f"{fields.origin}: rope", fields.mapping("rope_parameters"), fields.mapping("rope_scaling"))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "yarn", "llama3"):
        raise UnsupportedModelError(
            f"{fields.origin}: rope type {kind!r} is unknown; paceline runs default, yarn and llama3"
        )
    stated = next((f for f in (rope, fields) if f.get("rope_theta") is not None), None)
    if stated is None and default_theta is None:
        raise error(f"{fields.origin}: rope_theta is missing, at the top level and in rope_parameters")
    theta = default_theta if stated is None else stated.number("rope_theta")
    assert theta is not None
    partial = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", default_partial))
    rotary_dim = int(head_dim * partial)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise CheckpointError(
            f"{fields.origin}: partial_rotary_factor {partial} x head_dim {head_dim} must be an even count"
        )
    return RopeSpec(
        theta,
        rotary_dim,
        yarn=_yarn(rope, fields, max_position) if kind == "yarn" else None,
        llama3=_llama3(rope, max_position) if kind == "llama3" else None,
    )


def _llama3(rope: Fields, max_position: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.size("original_max_position_embeddings", max_position),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise CheckpointError(f"{rope.origin}: high_freq_factor must be greater than low_freq_factor")
    return scaling


def _yarn(rope: Fields, fields: Fields, max_position: int) -> YarnScaling:
    key = "original_max_position_embeddings"
    original = rope.size(key, fields.size(key, max_position))
    scaling = {
        name: rope.number(name)
        for name in ("attention_factor", "mscale", "mscale_all_dim")
        if rope.get(name) is not None
    }
    return YarnScaling(
        factor=rope.number("factor", max_position / original),
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        **scaling,
    )


def eos_ids(*sources: Fields) -> tuple[int, ...]:
    """Every end id that any of `sources` names, ascending: config.json or generation_config.json alone may
    lack the end-of-turn token."""
    ids: set[int] = set()
    for source in sources:
        value = source.get("eos_token_id")
        if isinstance(value, list):
            ids.update(source.indices("eos_token_id") or ())
        elif value is not None:
            ids.add(source.index("eos_token_id"))
    return tuple(sorted(ids))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")

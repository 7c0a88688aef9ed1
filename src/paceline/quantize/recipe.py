"""Recipes: which modules get which format.

A recipe is a list of rules, each a wildcard over module names and a format; of the rules that match a module
the last one holds, and a module without a rule stays as it is. As a file:

    rules:
      - {match: "*.mlp.*_proj", format: nvfp4}
      - {match: "*.layers.0.*", format: bf16}
    kv_cache: fp8            # optional: only declares it, there are no scales for it

Wildcards are those of a shell (`*`, `?`, `[...]`), case counts, and a rule must match the whole name, such as
`model.language_model.layers.3.mlp.down_proj`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field

from paceline.config.base import StrictModel, unknown_key_message
from paceline.errors import ConfigError
from paceline.quantize.layout import Format, fused_group

KvCache = Literal["fp8"]
M = TypeVar("M", bound=StrictModel)


class Rule(StrictModel):
    """One line of a recipe."""

    match: str = Field(min_length=1, description="wildcard over module names")
    format: Format = Field(description="nvfp4, w4a16_nvfp4, fp8 or bf16")


class RecipeFile(StrictModel):
    """A recipe file, as read."""

    rules: list[dict[str, Any]] = Field(min_length=1, description="list of {match, format}")
    kv_cache: KvCache | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """An ordered list of rules."""

    name: str
    rules: tuple[Rule, ...]
    kv_cache: KvCache | None = None
    strict: bool = False
    """A rule that matches nothing is an error. The built-in ones serve models that lack some layers."""


def _built_in(name: str, *patterns: str) -> Recipe:
    return Recipe(name, tuple(Rule(match=pattern, format="nvfp4") for pattern in patterns))


_REGULAR = ("*.self_attn.*_proj", "*.mlp.*_proj")
_DELTA = ("*.linear_attn.in_proj_qkv", "*.linear_attn.in_proj_z", "*.linear_attn.out_proj")
_LEGACY_AB = ("*.linear_attn.in_proj_a", "*.linear_attn.in_proj_b")
BUILT_IN = {"regular": _built_in("regular", *_REGULAR), "xs": _built_in("xs", *_REGULAR, *_DELTA)}


def load_recipe(name: str | Path, *, legacy_ab: bool = False) -> Recipe:
    """A built-in recipe (`regular`, `xs`) or the one in a YAML file.

    legacy_ab: also quantise `in_proj_a` and `in_proj_b`, as nvidia-modelopt did up to 0.44; `xs` only.

    Raises: ConfigError, one line, for an unknown name, an unreadable file or a wrong rule.
    """
    if legacy_ab and name != "xs":
        raise ConfigError("--legacy-ab changes recipe xs only; use --recipe xs", key="legacy_ab")
    if legacy_ab:
        return _built_in("xs", *_REGULAR, *_DELTA, *_LEGACY_AB)
    return BUILT_IN[str(name)] if str(name) in BUILT_IN else _from_file(Path(name))


def assign(recipe: Recipe, modules: Collection[str], fixed: Collection[str] = ()) -> dict[str, Format]:
    """The format of every module of `modules`; `fixed` are modules that exist but always stay as they are.

    Raises: ConfigError for a rule (of a file) that matches nothing or only what is fixed, and for projections
    that one GEMM reads but that got different formats.
    """
    formats: dict[str, Format] = dict.fromkeys(modules, "bf16")
    for rule in recipe.rules:
        matched = [name for name in modules if fnmatchcase(name, rule.match)]
        if recipe.strict and not matched:
            _refuse_idle_rule(recipe, rule, fixed)
        formats |= dict.fromkeys(matched, rule.format)
    _check_fused(recipe, formats)
    return formats


def _refuse_idle_rule(recipe: Recipe, rule: Rule, fixed: Iterable[str]) -> None:
    held = next((name for name in fixed if fnmatchcase(name, rule.match)), None)
    if held is None:
        raise ConfigError(
            f"recipe {recipe.name}: rule {rule.match!r} matches no module of this model; "
            "names look like model.language_model.layers.0.mlp.gate_proj",
            key="recipe",
        )
    if rule.format != "bf16":
        raise ConfigError(
            f"recipe {recipe.name}: rule {rule.match!r} matches only modules that always stay as they are "
            f"(such as {held}); remove the rule",
            key="recipe",
        )


def _check_fused(recipe: Recipe, formats: Mapping[str, Format]) -> None:
    for module, fmt in formats.items():
        for other in fused_group(module, formats):
            if formats[other] != fmt:
                raise ConfigError(
                    f"recipe {recipe.name}: {module} is {fmt} but {other} is {formats[other]}; loaders run "
                    "them as one product, so give them one format",
                    key="recipe",
                )


def _from_file(path: Path) -> Recipe:
    if path.suffix not in (".yaml", ".yml"):
        names = ", ".join(BUILT_IN)
        raise ConfigError(f"recipe {str(path)!r} is neither {names} nor a .yaml file", key="recipe")
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe file {path} does not exist", key="recipe") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"recipe file {path} cannot be read: {reason}", key="recipe") from None
    if not isinstance(value, dict):
        raise ConfigError(f"recipe file {path} must hold a mapping with the key rules", key="recipe")
    try:
        content = _parse(RecipeFile, value)
        rules = tuple(_parse(Rule, rule) for rule in content.rules)
    except ConfigError as error:
        raise ConfigError(f"recipe file {path}: {error}", key="recipe") from None
    return Recipe(path.name, rules, content.kv_cache, strict=True)


def _parse(model: type[M], value: Mapping[Any, Any]) -> M:
    """`model` from a YAML mapping. A misspelt key is named before the one that it then lacks."""
    for key in value:
        if key not in model.model_fields:
            raise ConfigError(unknown_key_message(str(key), model.model_fields, model.__name__), key=str(key))
    return model(**value)

"""Command-line options, derived from the configuration models: name, type, help and default are theirs."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from paceline.config import EngineConfig, ModelConfig, SpeculativeConfig
from paceline.config.sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

DEFAULT_MAX_TOKENS = 256
"""Completion tokens where neither the command line nor the model says how many."""


def config_option(model: type[BaseModel], field: str, absent: str | None = None) -> Decorator:
    """The option of one configuration field. Not given, it is None, so that the model's own default holds.

    `absent` says in the help what happens then, where that is not the field's default.
    """
    info = model.model_fields[field]
    flag = field.replace("_", "-")
    kind = _without_none(info.annotation)
    settings: dict[str, Any] = {"default": None, "help": info.description}
    if absent is not None:
        settings["help"] = f"{info.description} Absent: {absent}."
    elif info.default not in (None, PydanticUndefined):
        settings["help"] = f"{info.description} Default: {info.default}."
    if kind is bool:
        return click.option(f"--{flag}/--no-{flag}", field, **settings)
    if get_origin(kind) is Literal:
        return click.option(f"--{flag}", field, type=click.Choice(get_args(kind)), **settings)
    return click.option(f"--{flag}", field, type=kind, metavar=_METAVARS[kind], **settings)


def apply(*options: Decorator) -> Decorator:
    """Several options as one decorator, listed in `--help` in the order given here."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = [part for part in get_args(annotation) if part is not type(None)]
    return annotation


_METAVARS = {int: "N", float: "X", str: "TEXT"}
_GENERATION_CONFIG = "the model's generation_config.json"

model_argument = click.argument("model", metavar="MODEL")


def speculative_option(*, required: bool) -> Decorator:
    """`--speculative-config JSON`, whose keys are those of `SpeculativeConfig`."""
    keys = ", ".join(SpeculativeConfig.model_fields)
    text = f"""The proposer, in vLLM's keys, such as '{{"method": "ngram"}}'. Keys: {keys}."""
    return click.option("--speculative-config", required=required, metavar="JSON", help=text)


prompts_option = click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE.jsonl",
    help="JSON lines with `id` and `prompt` (other fields are ignored); - is stdin.",
)

engine_options = apply(
    config_option(EngineConfig, "max_num_seqs"),
    config_option(ModelConfig, "dtype"),
    config_option(ModelConfig, "device"),
    config_option(ModelConfig, "quantization"),
    config_option(ModelConfig, "quantized_weights"),
    config_option(EngineConfig, "deterministic"),
)

sampling_options = apply(
    click.option(
        "--sampling", metavar="JSON", help="Any SamplingParams fields; the flags below win over it."
    ),
    config_option(SamplingParams, "max_tokens", f"{_GENERATION_CONFIG}, else {DEFAULT_MAX_TOKENS}"),
    config_option(SamplingParams, "temperature", _GENERATION_CONFIG),
    config_option(SamplingParams, "top_p", _GENERATION_CONFIG),
    config_option(SamplingParams, "top_k", _GENERATION_CONFIG),
    config_option(SamplingParams, "min_p", _GENERATION_CONFIG),
    config_option(SamplingParams, "seed"),
)

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable results on stdout.")

debug_option = click.option(  # read by paceline.cli.main, which sees errors before any command could
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
)

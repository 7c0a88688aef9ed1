"""`paceline serve`: the OpenAI-compatible server, or, with --plan, what it would be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from paceline.cli import options
from paceline.cli.inputs import parse_json_option, parse_speculative
from paceline.cli.plan_view import show_plan
from paceline.cli.session import emit, notice
from paceline.config import CacheConfig, EngineConfig, ModelConfig
from paceline.config.recipes import RecipeFlags, environment_notes
from paceline.config.server import ServerConfig
from paceline.config.serving import CONFIG_FILE, RECIPE_KEYS, SERVER_KEYS, Serving
from paceline.errors import ConfigError

JSON_FLAGS = ("limit_mm_per_prompt",)
NAMES = "served_model_name"


def _help(model: Any, field: str) -> str:
    return str(model.model_fields[field].description)


_server = options.apply(
    *(options.config_option(ServerConfig, key) for key in SERVER_KEYS if key != NAMES),
    click.option(f"--{NAMES.replace('_', '-')}", NAMES, multiple=True, metavar="NAME",
                 help=_help(ServerConfig, NAMES)),
)  # fmt: skip
_engine = options.apply(
    options.config_option(EngineConfig, "max_num_batched_tokens"),
    click.option("--max-model-len", metavar="N", help=f"{_help(ModelConfig, 'max_model_len')} Also 256k."),
    options.config_option(CacheConfig, "block_size"),
    options.config_option(CacheConfig, "num_blocks"),
    options.config_option(CacheConfig, "prefix_checkpoints"),
    options.config_option(CacheConfig, "prefix_checkpoint_interval"),
    options.config_option(CacheConfig, "host_swap_gib"),
    options.config_option(EngineConfig, "seed"),
)
_recipe = options.apply(
    *(options.config_option(RecipeFlags, key) for key in RECIPE_KEYS if key not in JSON_FLAGS),
    *(
        click.option(f"--{key.replace('_', '-')}", key, metavar="JSON", help=_help(RecipeFlags, key))
        for key in JSON_FLAGS
    ),
)


@click.command(short_help="Serve MODEL over HTTP, as OpenAI's clients expect it.")
@options.model_argument
@options.speculative_option(required=False)
@_server
@options.engine_options
@_engine
@_recipe
@click.option("--config", metavar="FILE", help=f"YAML file of options. Absent: ./{CONFIG_FILE}, if any.")
@click.option("--plan", is_flag=True, help="Say what would be served, in what memory, and exit.")
@options.json_option
@options.debug_option
def serve(model: str, config: str | None, plan: bool, as_json: bool, **given: Any) -> int:
    """Serve MODEL over HTTP: a folder in Hugging Face layout, a hub id, or `demo`.

    Flags of `vllm serve` recipes are understood: each is honoured, answered with a line that says why it
    has no effect here, or refused. The command line wins over the file of options.
    """
    if as_json and not plan:
        raise ConfigError("--json goes with --plan", key="json")
    serving = Serving.of(model, _values(given), config)

    from paceline.engine.resolve import resolve
    from paceline.serve.service import check_generation_config, model_template, read_template

    template = read_template(serving.server.chat_template)
    check_generation_config(serving.server.generation_config)
    resolved = resolve(serving.engine)  # what does not fit is refused before anything is loaded
    answers = serving.server.answer_format(template or model_template(resolved.folder))
    for note in (*serving.notes(resolved.device.type), *environment_notes(os.environ)):
        notice(note)
    if plan:
        from paceline.engine.budget import forecast

        what = {"settings": serving.settings(answers), **forecast(resolved)}
        emit(what) if as_json else show_plan(what)
        return 0

    from paceline.serve.server import serve as run

    names = ", ".join(serving.server.served_model_name or (model,))
    return run(serving, lambda url: notice(f"listening on {url}, model {names}"))


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line gives, JSON flags parsed."""
    values = {key: value for key, value in given.items() if value is not None and value != ()}
    for key in JSON_FLAGS:
        if key in values:
            values[key] = parse_json_option(values[key], f"--{key.replace('_', '-')}")
    if "speculative_config" in values:
        values["speculative_config"] = parse_speculative(values["speculative_config"])
    return values

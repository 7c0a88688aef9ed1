"""`paceline serve`'s options, from the command line and paceline.yaml: one flat set, put into its layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel

from paceline.config.base import unknown_key_message
from paceline.config.cache import CacheConfig
from paceline.config.engine import EngineConfig
from paceline.config.model import ModelConfig
from paceline.config.recipes import RecipeFlags
from paceline.config.server import AnswerFormat, ServerConfig
from paceline.config.speculative import SpeculativeConfig
from paceline.errors import ConfigError

CONFIG_FILE = "paceline.yaml"
MODEL_KEYS = ("dtype", "device", "max_model_len", "quantization", "quantized_weights")
CACHE_KEYS = (
    "block_size", "num_blocks", "prefix_checkpoints", "prefix_checkpoint_interval", "host_swap_gib",
)  # fmt: skip
ENGINE_KEYS = ("max_num_seqs", "max_num_batched_tokens", "deterministic", "seed")
SERVER_KEYS = tuple(ServerConfig.model_fields)
RECIPE_KEYS = tuple(RecipeFlags.model_fields)
SPECULATIVE_KEY = "speculative_config"
KEYS = (*MODEL_KEYS, *CACHE_KEYS, *ENGINE_KEYS, *SERVER_KEYS, *RECIPE_KEYS, SPECULATIVE_KEY)

_LENGTH = re.compile(r"(\d+)([kKmM]?)")
_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


@dataclass(frozen=True, slots=True)
class Serving:
    """Everything that a server is started from."""

    engine: EngineConfig
    server: ServerConfig
    recipe: RecipeFlags
    origins: Mapping[str, str]
    """Where each option that was given comes from: "command line" or the file."""

    @classmethod
    def of(cls, model: str, command_line: Mapping[str, Any], path: str | None) -> Self:
        """Options of the file, with those of the command line on top.

        path: the file; None: ./paceline.yaml where there is one. Raises: ConfigError, one line.
        """
        file = path or (CONFIG_FILE if Path(CONFIG_FILE).is_file() else None)
        from_file = {} if file is None else read_options(Path(file))
        given = {**from_file, **command_line}
        origins = {**dict.fromkeys(from_file, str(file)), **dict.fromkeys(command_line, "command line")}
        _known(given)
        recipe = RecipeFlags(**_chosen(given, RECIPE_KEYS))
        return cls(
            _engine(model, given, recipe), ServerConfig(**_chosen(given, SERVER_KEYS)), recipe, origins
        )

    def notes(self, device: str) -> Iterator[str]:
        """One line for each option that was given and has no effect on `device` ("cpu" or "cuda")."""
        yield from self.recipe.notes(device)
        server = self.server
        named = server.tool_call_parser not in (None, "none")
        if named and not server.enable_auto_tool_choice:
            yield "--tool-call-parser: no effect without --enable-auto-tool-choice"

    def settings(self, answers: AnswerFormat) -> dict[str, dict[str, Any]]:
        """Every option with its value and where that comes from; the key's value is never shown.

        answers: what the chat template has decided of what was left open.
        """
        layers: tuple[tuple[BaseModel, tuple[str, ...]], ...] = (
            (self.engine.model, MODEL_KEYS),
            (self.engine.cache, CACHE_KEYS),
            (self.engine, ENGINE_KEYS),
            (self.server, SERVER_KEYS),
            (self.recipe, RECIPE_KEYS),
        )
        values = {key: getattr(layer, key) for layer, keys in layers for key in keys}
        speculative = self.engine.speculative
        values[SPECULATIVE_KEY] = speculative.model_dump(exclude_none=True) if speculative else None
        if values["api_key"] is not None:
            values["api_key"] = "(set)"
        found = {k: {"value": v, "from": self.origins.get(k, "default")} for k, v in values.items()}
        decided = {
            "reasoning_parser": "qwen3" if answers.reasoning else "none",
            "tool_call_parser": "qwen3_coder" if answers.tool_calls else "none",
            "enable_auto_tool_choice": answers.auto_tool_choice,
        }
        for key, value in decided.items():
            if found[key]["value"] is None:
                found[key] = {"value": value, "from": "chat template"}
        return found


def read_options(path: Path) -> dict[str, Any]:
    """A file of options: a YAML mapping whose keys are flags without their dashes."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Options)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}", key="config") from None
    if not isinstance(values, dict | None):
        raise ConfigError(f"{path} must hold options as `key: value`", key="config")
    return dict(values or {})


class _Options(yaml.SafeLoader):
    """Plain values only; of a key that stands twice, YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping. Raises: YAMLError for a key that stands twice, with dashes or underscores."""
        values: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            name = str(key).replace("-", "_")
            if name in values:
                raise yaml.YAMLError(f"the key {name!r} stands twice, line {key_node.start_mark.line + 1}")
            values[name] = self.construct_object(value_node, deep=deep)
        return values


def parse_length(value: Any) -> Any:
    """A length in tokens: 4096, "256k" (thousands), "256K" (1024s); auto and -1 are the model's own."""
    if value in ("auto", "-1", -1):
        return None
    if not isinstance(value, str):
        return value
    match = _LENGTH.fullmatch(value)
    if match is None:
        raise ConfigError(
            f"max_model_len = {value!r}: give tokens, such as 4096 or 256k, or auto", key="max_model_len"
        )
    return int(match[1]) * _UNITS[match[2]]


def _engine(model: str, given: Mapping[str, Any], recipe: RecipeFlags) -> EngineConfig:
    values = _chosen(given, MODEL_KEYS)
    if "max_model_len" in values:
        values["max_model_len"] = parse_length(values["max_model_len"])
    speculative = given.get(SPECULATIVE_KEY)
    if speculative is not None and not isinstance(speculative, Mapping):
        raise ConfigError(f"{SPECULATIVE_KEY} must be an object, such as {{}}", key=SPECULATIVE_KEY)
    return EngineConfig(
        model=ModelConfig(model=model, **values),
        cache=CacheConfig(
            **_chosen(given, CACHE_KEYS),
            kv_dtype=recipe.kv_cache_dtype,  # type: ignore[arg-type]  # the flag is checked against KV_DTYPES
            gpu_memory_utilization=recipe.gpu_memory_utilization,
            enable_prefix_caching=recipe.enable_prefix_caching,
        ),
        speculative=None if speculative is None else SpeculativeConfig.parse(speculative),
        **_chosen(given, ENGINE_KEYS),
    )


def _chosen(given: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}


def _known(given: Mapping[str, Any]) -> None:
    for key in given:
        if key not in KEYS:
            raise ConfigError(unknown_key_message(key, KEYS, "paceline serve"), key=key)

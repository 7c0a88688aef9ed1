"""What a checkpoint says of its quantisation: `quantization_config` in config.json, else
`hf_quant_config.json`, as nvidia-modelopt and compressed-tensors write them.

How a tensor is stored shows in the tensor itself; the words here decide whether that is a format that is
read, and a tensor that contradicts them is refused rather than guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.kernels.nvfp4 import BLOCK
from paceline.models.checkpoint import Checkpoint, read_json

Kind = Literal["nvfp4", "fp8"]
Method = Literal["modelopt", "compressed-tensors"]
HF_QUANT_CONFIG = "hf_quant_config.json"
MIXED = "MIXED_PRECISION"
PACK_QUANTIZED = "nvfp4-pack-quantized"
KINDS: Mapping[str, Kind] = {
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
}
"""modelopt's algorithms, by how a weight is stored. Activations are never quantised here."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A checkpoint's own description of its quantisation."""

    origin: str
    """The file that says so."""
    method: Method
    algorithm: str
    """modelopt's `quant_algo`, or compressed-tensors' `format`."""
    excluded: tuple[str, ...]
    """What is not quantised: module names, modelopt's wildcards, compressed-tensors' `re:` patterns."""
    layers: Mapping[str, Kind] | None
    """Of a mixed checkpoint: every quantised module."""
    kv_cache: str | None
    """How keys and values would be stored by loaders that quantise them."""

    def check(self, module: str, kind: Kind) -> None:
        """Raises: CheckpointError where `module`, stored as `kind`, is said to be stored otherwise."""
        entry = next((entry for entry in self.excluded if self._matches(module, entry)), None)
        if entry is not None:
            raise CheckpointError(
                f"{self.origin}: {entry!r} says that {module} is not quantised, but it is stored as {kind}; "
                "correct the list of excluded modules"
            )
        wanted = self._kind(module)
        if wanted != kind:
            said = "not quantised" if wanted is None else wanted
            raise CheckpointError(
                f"{self.origin}: {self.algorithm} says that {module} is {said}, but it is stored as {kind}; "
                "quantise again or correct the file"
            )

    def _kind(self, module: str) -> Kind | None:
        if self.layers is not None:
            return self.layers.get(_canonical(module))
        return "nvfp4" if self.method == "compressed-tensors" else KINDS[self.algorithm]

    def _matches(self, module: str, entry: str) -> bool:
        if self.method == "compressed-tensors" and entry.startswith("re:"):
            return re.match(entry[3:], module) is not None
        return fnmatchcase(_canonical(module), _canonical(entry))


def read_declared(checkpoint: Checkpoint) -> Declared | None:
    """The checkpoint's description of itself, None where it has none. config.json wins.

    Raises: UnsupportedModelError naming a method or algorithm that is not read, CheckpointError for a
    malformed description.
    """
    text = checkpoint.config.get("text_config")
    levels = (checkpoint.config, text if isinstance(text, Mapping) else {})
    section = next(
        (level[key] for level in levels for key in ("quantization_config",) if level.get(key)), None
    )
    separate = checkpoint.path / HF_QUANT_CONFIG
    if section is None:
        return _from_separate(separate) if separate.is_file() else None
    origin = checkpoint.config_file
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{origin}: quantization_config must be an object")
    method = str(section.get("quant_method"))
    if method == "compressed-tensors":
        return _compressed(section, origin)
    if not method.startswith("modelopt"):
        raise UnsupportedModelError(
            f"{origin}: quantization_config has quant_method {method!r}; paceline reads modelopt "
            "and compressed-tensors"
        )
    if section.get("quant_algo") == MIXED and not section.get("quantized_layers") and separate.is_file():
        return _from_separate(separate)
    return _modelopt(section, origin)


def _from_separate(path: Any) -> Declared | None:
    quantization = read_json(path).get("quantization")
    if not isinstance(quantization, Mapping):
        raise CheckpointError(f"{path} has no object named quantization")
    return None if quantization.get("quant_algo") is None else _modelopt(quantization, str(path))


def _modelopt(section: Mapping[str, Any], origin: str) -> Declared:
    algorithm = str(section.get("quant_algo"))
    if algorithm != MIXED and algorithm not in KINDS:
        raise _unsupported(algorithm, origin)
    for size in _group_sizes(section):
        if size != BLOCK and algorithm in ("NVFP4", "W4A16_NVFP4"):
            raise UnsupportedModelError(
                f"{origin}: group_size is {size}; paceline reads NVFP4 in groups of {BLOCK}"
            )
    listed = section.get("ignore", section.get("exclude_modules"))
    layers = _layers(section, origin) if algorithm == MIXED else None
    kv = section.get("kv_cache_quant_algo") or ("FP8" if section.get("kv_cache_scheme") else None)
    return Declared(origin, "modelopt", algorithm, _names(listed, origin), layers, kv and str(kv))


def _layers(section: Mapping[str, Any], origin: str) -> dict[str, Kind]:
    named = section.get("quantized_layers")
    if not isinstance(named, Mapping) or not all(isinstance(layer, Mapping) for layer in named.values()):
        raise CheckpointError(f"{origin}: {MIXED} needs quantized_layers, an object of modules")
    for module, layer in named.items():
        if layer.get("quant_algo") not in KINDS:
            raise _unsupported(str(layer.get("quant_algo")), f"{origin}: quantized_layers: {module}")
    return {_canonical(module): KINDS[layer["quant_algo"]] for module, layer in named.items()}


def _compressed(section: Mapping[str, Any], origin: str) -> Declared:
    groups = section.get("config_groups")
    formats = {section.get("format")}
    formats |= {group.get("format") for group in (groups or {}).values() if isinstance(group, Mapping)}
    for other in sorted(str(name) for name in formats - {None, PACK_QUANTIZED}):
        raise UnsupportedModelError(
            f"{origin}: quantization_config has format {other!r}; paceline reads {PACK_QUANTIZED} "
            "of compressed-tensors"
        )
    excluded = _names(section.get("ignore"), origin)
    for entry in excluded:
        try:
            re.compile(entry.removeprefix("re:") if entry.startswith("re:") else "")
        except re.error as error:
            raise CheckpointError(f"{origin}: ignore entry {entry!r} is no pattern: {error}") from None
    kv = "FP8" if section.get("kv_cache_scheme") else None
    return Declared(origin, "compressed-tensors", PACK_QUANTIZED, excluded, None, kv)


def _group_sizes(section: Mapping[str, Any]) -> Iterator[Any]:
    if section.get("group_size") is not None:
        yield section["group_size"]
    for group in (section.get("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("group_size") is not None:
            yield weights["group_size"]


def _names(listed: Any, origin: str) -> tuple[str, ...]:
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise CheckpointError(f"{origin}: the list of excluded modules must hold names")
    return tuple(listed)


def _unsupported(algorithm: str, origin: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{origin}: quant_algo {algorithm} is not supported; paceline reads {', '.join(KINDS)} and {MIXED} "
        "of these"
    )


def _canonical(name: str) -> str:
    """One spelling for the names that loaders and exporters use for the same module."""
    return name.replace("model.language_model.", "model.").replace("language_model.model.", "model.")

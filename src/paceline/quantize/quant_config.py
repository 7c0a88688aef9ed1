"""What a quantised checkpoint says of itself: `config.json`'s `quantization_config` and
`hf_quant_config.json`.

The layout is nvidia-modelopt 0.47's. Loaders take config.json's section where there is one, so both files
are written with the same list of what is not quantised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from paceline.quantize.layout import FUSED, MTP, VISION, Format
from paceline.quantize.nvfp4 import BLOCK
from paceline.quantize.recipe import KvCache

HF_QUANT_CONFIG = "hf_quant_config.json"
MTP_IGNORE = ("mtp*", "mtp.layers.0*")
"""Entries for the multi-token head. Loaders check modules of the head one by one and need both."""

# The name by which loaders recognise this layout, and the release whose keys it has.
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
ALGORITHMS: dict[Format, str] = {"nvfp4": "NVFP4", "w4a16_nvfp4": "W4A16_NVFP4", "fp8": "FP8"}
MIXED = "MIXED_PRECISION"


@dataclass(frozen=True, slots=True)
class QuantFiles:
    """The two JSON values that describe a quantised checkpoint."""

    section: dict[str, Any]
    """`quantization_config` of config.json."""
    separate: dict[str, Any]
    """hf_quant_config.json."""


def describe(formats: Mapping[str, Format], tensors: Iterable[str], kv_cache: KvCache | None) -> QuantFiles:
    """Describe a checkpoint with `formats` (by module, bf16 included) that holds the tensors `tensors`."""
    used = sorted({fmt for fmt in formats.values() if fmt != "bf16"})
    kv = kv_cache.upper() if kv_cache else None
    if len(used) == 1:
        algorithm = ALGORITHMS[used[0]]
        ignore = ignore_list(formats, tensors)
        quantization: dict[str, Any] = {"quant_algo": algorithm, "kv_cache_quant_algo": kv}
        if used[0] != "fp8":
            quantization["group_size"] = BLOCK
        quantization["exclude_modules"] = ignore
        section: dict[str, Any] = {"config_groups": {"group_0": {**_group(used[0]), "targets": ["Linear"]}}}
    else:
        algorithm, ignore = MIXED, []
        layers = {module: _layer(fmt) for module, fmt in formats.items() if fmt != "bf16"}
        quantization = {"quant_algo": MIXED, "kv_cache_quant_algo": kv, "quantized_layers": layers}
        section = {"config_groups": _mixed_groups(formats, used), "quantized_layers": layers}
    section |= {"ignore": ignore, "quant_algo": algorithm}
    if kv_cache:
        section["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    section |= {"producer": _PRODUCER, "quant_method": "modelopt"}
    return QuantFiles(section, {"producer": _PRODUCER, "quantization": quantization})


def ignore_list(formats: Mapping[str, Format], tensors: Iterable[str]) -> list[str]:
    """What is not quantised: exact module names, and a trailing `*` for a whole subtree.

    Exact names, because loaders also take an entry as a substring: "layers.1" would swallow layers 10 to 19.
    """
    tensors = list(tensors)
    entries = {module for module, fmt in formats.items() if fmt == "bf16"}
    entries |= {name.removesuffix(".weight") for name in tensors if name.endswith("embed_tokens.weight")}
    entries |= {
        name.removesuffix(".weight") for name in tensors if name.endswith("linear_attn.conv1d.weight")
    }
    for mixer in {entry.rpartition(".")[0] for entry in entries if ".linear_attn." in entry}:
        if all(fmt == "bf16" for module, fmt in formats.items() if module.startswith(f"{mixer}.")):
            entries = {entry for entry in entries if not entry.startswith(f"{mixer}.")} | {f"{mixer}*"}
    entries |= {f"{prefix.rstrip('.')}*" for prefix in VISION if any(n.startswith(prefix) for n in tensors)}
    if any(name.startswith(MTP) for name in tensors):
        entries |= set(MTP_IGNORE)
    return ["lm_head"] * ("lm_head" not in formats) + sorted(entries)


def ignored_by(module: str, entries: Iterable[str]) -> str | None:
    """The entry by which vLLM leaves `module` unquantised, or None: exact, else substring, else wildcard."""
    short = module.removeprefix("model.").removeprefix("language_model.")
    for entry in entries:
        plain = entry[:-1] if entry.endswith("*") else entry
        if "*" not in plain and (plain == module or plain in module or plain in short):
            return entry
        if "*" in entry and (fnmatchcase(module, entry) or fnmatchcase(short, entry)):
            return entry
    return None


def split_groups(modules: Iterable[str], entries: Iterable[str]) -> list[str]:
    """Fused groups of which only some parts are ignored, as the module names of the odd ones out."""
    entries, names = list(entries), set(modules)
    odd = []
    for module in sorted(names):
        parent, _, leaf = module.rpartition(".")
        first = next((group[0] for group in FUSED if leaf in group and leaf != group[0]), None)
        other = f"{parent}.{first}"
        if first and other in names and bool(ignored_by(module, entries)) != bool(ignored_by(other, entries)):
            odd.append(module)
    return odd


def with_mtp_ignored(entries: Iterable[str]) -> list[str]:
    """The list with the multi-token head added, where it is not there yet."""
    entries = list(entries)
    return entries + [entry for entry in MTP_IGNORE if entry not in entries]


def final_config(
    config: Mapping[str, Any], section: Mapping[str, Any] | None, tensors: Iterable[str]
) -> dict[str, Any]:
    """`config.json` of an output that holds `tensors`: its `quantization_config` (None: not quantised) and as
    many layers of the multi-token head as there are."""
    changed = {key: value for key, value in config.items() if key != "quantization_config"}
    layers = len({name.split(".")[2] for name in tensors if name.startswith(f"{MTP}layers.")})
    nested = isinstance(config.get("text_config"), dict)
    text = dict(config["text_config"]) if nested else changed
    if layers or "mtp_num_hidden_layers" in text:
        text["mtp_num_hidden_layers"] = layers
    if nested:
        text.pop("quantization_config", None)
        changed["text_config"] = text
    if section is not None:
        changed["quantization_config"] = dict(section)
    return changed


def _group(fmt: Format) -> dict[str, Any]:
    scheme: dict[str, Any] = {"dynamic": False, "num_bits": 8, "type": "float"}
    if fmt != "fp8":
        scheme = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    return {"weights": scheme} if fmt == "w4a16_nvfp4" else {"input_activations": scheme, "weights": scheme}


def _layer(fmt: Format) -> dict[str, Any]:
    algorithm: dict[str, Any] = {"quant_algo": ALGORITHMS[fmt]}
    return algorithm if fmt == "fp8" else {**algorithm, "group_size": BLOCK}


def _mixed_groups(formats: Mapping[str, Format], used: Sequence[Format]) -> dict[str, Any]:
    return {
        f"group_{i}": {**_group(fmt), "targets": sorted(m for m, f in formats.items() if f == fmt)}
        for i, fmt in enumerate(used)
    }

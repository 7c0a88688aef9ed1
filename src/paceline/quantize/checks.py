"""The checklist: everything that is known to keep a checkpoint from loading or to make it run wrongly.

Each check gets the opened checkpoint and returns problems, each with its fix. What loaders do with the list
of unquantised modules follows vLLM 0.33, the strictest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from safetensors import SafetensorError, safe_open

from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint, read_json
from paceline.models.quantization import read_declared
from paceline.quantize.layout import MTP, VISION, is_tied, linear_modules
from paceline.quantize.quant_config import HF_QUANT_CONFIG, MIXED, ignored_by, split_groups
from paceline.quantize.scale_checks import Problem, quantized_modules, scale_tensors, scale_values

_LOADED = ("FP8", "NVFP4", "W4A16_NVFP4", MIXED)


def check_checkpoint(checkpoint: Checkpoint, *, read_scales: bool = True) -> list[Problem]:
    """All problems of an opened checkpoint, errors first."""
    section = declared_section(checkpoint)
    modules = quantized_modules(checkpoint)
    problems = [
        *_malformed(checkpoint),
        *_files(checkpoint),
        *_vision(checkpoint),
        *_mtp(checkpoint, section),
    ]
    problems += _config(checkpoint, section, modules)
    for module, layout in modules.items():
        problems += scale_tensors(checkpoint, module, layout)
    if read_scales:
        problems += scale_values(checkpoint, modules)
    if section is not None and section.get("quant_method") == "modelopt" and modules:
        problems += _ignore_list(checkpoint, section, modules)
    return sorted(problems, key=lambda problem: problem.severity != "error")


def declared_section(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """`quantization_config` of config.json, else what hf_quant_config.json says, in the same keys; None where
    neither is there. A list of modules that is no list of names is left out."""
    section = checkpoint.config.get("quantization_config")
    if not section:
        separate = _separate(checkpoint)
        if not separate or separate.get("quant_algo") is None:
            return None
        section = {"quant_method": "modelopt", **separate, "ignore": separate.get("exclude_modules") or []}
    if not isinstance(section, dict):
        return None
    return {**section, "ignore": _entries(section.get("ignore", section.get("exclude_modules")))}


def _separate(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """hf_quant_config.json's description; None where there is no readable one."""
    try:
        found = read_json(checkpoint.path / HF_QUANT_CONFIG).get("quantization")
    except CheckpointError:
        return None
    return found if isinstance(found, dict) else None


def _entries(listed: Any) -> list[str]:
    return [entry for entry in listed if isinstance(entry, str)] if isinstance(listed, list) else []


def _malformed(checkpoint: Checkpoint) -> Iterator[Problem]:
    fix = "restore the file from where the checkpoint came from"
    try:
        read_declared(checkpoint)
    except CheckpointError as error:
        yield Problem("error", "malformed", str(error), fix)
        return
    except UnsupportedModelError:
        pass  # the algorithm or the tensors are named elsewhere
    separate = checkpoint.path / HF_QUANT_CONFIG
    if separate.is_file() and _separate(checkpoint) is None:
        yield Problem("warning", "malformed", f"{separate} has no object named quantization", fix)


def _files(checkpoint: Checkpoint) -> Iterator[Problem]:
    folder = checkpoint.path
    if (folder / SINGLE_FILE).is_file() and (folder / INDEX_FILE).is_file():
        yield Problem(
            "warning",
            "index-shadowed",
            f"{SINGLE_FILE} and {INDEX_FILE} are both there; loaders take the single file and drop the rest",
            f"rename {SINGLE_FILE} and name it so in the index, or remove the index",
        )
    for file in sorted(folder.glob("*.safetensors")):
        lost = sorted(name for name in _names(file) if name not in checkpoint.tensors)
        if lost:
            yield Problem(
                "warning",
                "not-in-index",
                f"{len(lost)} tensors of {file.name} are not in the index, such as {lost[0]}; none is loaded",
                f"add them to weight_map of {INDEX_FILE}, or remove the file",
            )


def _names(file: Any) -> list[str]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError):
        return []


def _vision(checkpoint: Checkpoint) -> Iterator[Problem]:
    nested = [name for name in checkpoint.tensors if ".visual." in name and not name.startswith(VISION)]
    if nested:
        yield Problem(
            "error",
            "vision-nested",
            f"{len(nested)} vision tensors are nested wrongly, such as {nested[0]}; loaders skip them and "
            "images are ignored",
            "rename them to model.visual.*",
        )


def _mtp(checkpoint: Checkpoint, section: Mapping[str, Any] | None) -> Iterator[Problem]:
    text = checkpoint.config.get("text_config")
    levels = (checkpoint.config, text if isinstance(text, dict) else {})
    declared = any(level.get("mtp_num_hidden_layers") for level in levels)
    head = [name for name in checkpoint.tensors if name.startswith(MTP)]
    if declared and not head:
        yield Problem(
            "warning",
            "mtp-absent",
            "config.json declares a multi-token head, but there are no mtp.* tensors; speculation with it "
            "fails or accepts nothing",
            "run paceline graft-mtp BASE MODEL",
        )
    if head and not declared:
        yield Problem(
            "warning",
            "mtp-undeclared",
            "there is a multi-token head, but config.json does not declare it; loaders leave it out",
            "set mtp_num_hidden_layers to 1 in text_config",
        )
    plain = [name for name in head if name.endswith("_proj.weight") or name == "mtp.fc.weight"]
    plain = [name for name in plain if checkpoint.tensors[name].dtype in ("BF16", "F32")]
    if section is None or section.get("quant_algo") == MIXED or not plain:
        return
    entries = section["ignore"]
    if section.get("quant_method") == "compressed-tensors":
        covered = any(entry.startswith("re:") and "mtp" in entry for entry in entries)
    else:
        covered = all(ignored_by(name.removesuffix(".weight"), entries) for name in plain)
    if not covered:
        yield Problem(
            "error",
            "mtp-not-ignored",
            "the multi-token head is not quantised, but quantization_config.ignore does not name all of it",
            "run paceline graft-mtp BASE MODEL, or add mtp* and mtp.layers.0* to the list in config.json",
        )


def _config(
    checkpoint: Checkpoint, section: Mapping[str, Any] | None, modules: Mapping[str, str]
) -> Iterator[Problem]:
    separate = checkpoint.path / HF_QUANT_CONFIG
    if section is None:
        if modules and not separate.is_file():
            yield Problem(
                "error",
                "no-quantization-config",
                f"{len(modules)} modules are quantised, but config.json has no quantization_config",
                "quantise again, or restore the section",
            )
        return
    if not modules:
        yield Problem(
            "error",
            "nothing-quantized",
            "config.json has a quantization_config, but no weight is quantised",
            "remove the section",
        )
    algorithm = section.get("quant_algo")
    if section.get("quant_method") == "modelopt" and algorithm not in _LOADED:
        yield Problem(
            "error",
            "algorithm",
            f"quant_algo {algorithm} is not loaded by vLLM nor by paceline",
            "quantise with recipe regular or xs (NVFP4)",
        )
    found = _separate(checkpoint)
    if found is not None and set(_entries(found.get("exclude_modules"))) != set(section["ignore"]):
        yield Problem(
            "warning",
            "lists-differ",
            f"{HF_QUANT_CONFIG} and config.json list different unquantised modules; config.json counts",
            f"copy the list of config.json to exclude_modules of {HF_QUANT_CONFIG}",
        )


def _ignore_list(
    checkpoint: Checkpoint, section: Mapping[str, Any], modules: Mapping[str, str]
) -> Iterator[Problem]:
    if section.get("quant_algo") == MIXED:
        yield from _layers_named(section, modules)
        return
    entries = section["ignore"]
    swallowed: dict[str, list[str]] = {}
    for module in modules:
        if entry := ignored_by(module, entries):
            swallowed.setdefault(entry, []).append(module)
    for entry, names in swallowed.items():
        yield Problem(
            "error",
            "ignore-swallows",
            f"ignore entry {entry!r} also matches {len(names)} quantised modules, such as {names[0]}",
            f"write {entry.rstrip('*.') + '.*'!r} or exact names: an entry counts as a substring, so "
            "layers.1 matches layers 10 to 19",
        )
    plain = [
        name
        for name in linear_modules(checkpoint.tensors, tied=is_tied(checkpoint.config))
        if name not in modules
    ]
    unlisted = [name for name in plain if not ignored_by(name, entries)]
    if unlisted:
        yield Problem(
            "error",
            "ignore-lacks",
            f"{len(unlisted)} modules are not quantised but not in quantization_config.ignore, such as "
            f"{unlisted[0]}; loaders expect packed weights for them",
            "add their exact names to the list in config.json",
        )
    for module in split_groups([*modules, *plain], entries):
        yield Problem(
            "error",
            "ignore-splits",
            f"{module} and what is fused with it are not both ignored or both quantised",
            "treat all parts of the fused projection alike",
        )


def _layers_named(section: Mapping[str, Any], modules: Iterable[str]) -> Iterator[Problem]:
    named = section.get("quantized_layers")
    named = [str(name) for name in named] if isinstance(named, dict) else []
    for what, names in (
        ("quantised but not in", [name for name in modules if name not in named]),
        ("not quantised but in", [name for name in named if name not in set(modules)]),
    ):
        if names:
            yield Problem(
                "error",
                "layers-differ",
                f"{len(names)} modules are {what} quantized_layers, such as {names[0]}",
                "correct quantized_layers in config.json and hf_quant_config.json",
            )

"""What a checkpoint is: parts, sizes, formats, multi-token head, drafter fields, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint, read_config
from paceline.quantize.checks import check_checkpoint, declared_section
from paceline.quantize.layout import MTP, VISION
from paceline.quantize.scale_checks import Problem
from paceline.quantize.shards import ITEM_SIZES
from paceline.quantize.stored import PlainView

PARTS = (
    "embedding",
    "attention",
    "linear attention",
    "mlp",
    "norms",
    "lm_head",
    "multi-token head",
    "vision",
    "other",
)
_DRAFTER_FIELDS = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "num_hidden_layers",
    "num_target_layers",
)
_FORMATS = {
    "plain": "plain",
    "modelopt-nvfp4": "nvfp4",
    "compressed-tensors-nvfp4": "nvfp4",
    "fp8": "fp8",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a model."""

    name: str
    parameters: int
    """Elements of the plain tensors, whatever they are stored as; scales are none."""
    nbytes: int
    """As stored, scales included."""
    formats: dict[str, int]
    """Parameters by format: nvfp4, fp8, or the dtype of plain ones."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of `inspect`."""

    path: Path
    architecture: str
    model_type: str | None
    quantization: dict[str, Any] | None
    """method, algorithm and layout, as config.json says, or else hf_quant_config.json."""
    parts: list[Part]
    mtp: str
    """`present`, `declared` (config.json says so, there are no tensors) or `absent`."""
    drafter: dict[str, Any] | None
    """Fields of a DFlash drafter; None for any other checkpoint."""
    problems: list[Problem]

    @property
    def loads(self) -> bool:
        """Whether nothing was found that keeps it from loading; `inspect` exits with 1 where it does not."""
        return not any(problem.severity == "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """The object that `inspect --json` prints."""
        return {**asdict(self), "path": str(self.path), "loads": self.loads}


def inspect(model: Path, *, read_scales: bool = True) -> Inspection:
    """Look at the folder `model`. read_scales: also read the scales' values (small, but not just headers).

    Raises: CheckpointError where there is no config.json to begin with; every other fault is a problem in
    the result.
    """
    config = read_config(model)
    try:
        checkpoint = Checkpoint.open(model)
    except CheckpointError as error:
        problem = Problem("error", "unreadable", str(error), "fetch the named files again")
        return _result(model, config, config.get("quantization_config"), [], "unknown", [problem])
    problems = check_checkpoint(checkpoint, read_scales=read_scales)
    try:
        view: PlainView | None = PlainView(checkpoint)
    except (CheckpointError, UnsupportedModelError) as error:
        view = None
        if not any(problem.severity == "error" for problem in problems):
            problems.append(Problem("error", "undecodable", str(error), "quantise the original again"))
    section = declared_section(checkpoint)
    return _result(model, config, section, _parts(checkpoint, view), _mtp(checkpoint), problems)


def part_of(name: str) -> str:
    """The part that a tensor belongs to."""
    if name.startswith(MTP):
        return "multi-token head"
    if name.startswith(VISION) or ".visual." in name:
        return "vision"
    for sign, part in (
        ("embed_tokens", "embedding"),
        ("lm_head", "lm_head"),
        (".linear_attn.", "linear attention"),
        (".self_attn.", "attention"),
        (".mlp.", "mlp"),
        ("norm.", "norms"),
    ):
        if sign in name:
            return part
    return "other"


def _result(
    model: Path,
    config: Mapping[str, Any],
    section: object,
    parts: list[Part],
    mtp: str,
    problems: list[Problem],
) -> Inspection:
    named = config.get("architectures")
    architecture = ", ".join(map(str, named)) if isinstance(named, list) and named else "unnamed"
    return Inspection(
        path=model,
        architecture=architecture,
        model_type=config.get("model_type"),
        quantization=_quantization(section),
        parts=parts,
        mtp=mtp,
        drafter=_drafter(config, architecture),
        problems=problems,
    )


def _quantization(section: object) -> dict[str, Any] | None:
    if not isinstance(section, dict):
        return None
    return {
        "method": section.get("quant_method"),
        "algorithm": section.get("quant_algo") or section.get("format"),
        "kv_cache": section.get("kv_cache_scheme"),
    }


def _drafter(config: Mapping[str, Any], architecture: str) -> dict[str, Any] | None:
    nested = config.get("dflash_config")
    if not isinstance(nested, dict) and "dflash" not in architecture.lower():
        return None
    merged = {**config, **(nested if isinstance(nested, dict) else {})}
    return {name: merged.get(name) for name in _DRAFTER_FIELDS}


def _mtp(checkpoint: Checkpoint) -> str:
    if any(name.startswith(MTP) for name in checkpoint.tensors):
        return "present"
    text = checkpoint.config.get("text_config")
    for level in (checkpoint.config, text if isinstance(text, dict) else {}):
        if level.get("mtp_num_hidden_layers"):
            return "declared"
    return "absent"


def _parts(checkpoint: Checkpoint, view: PlainView | None) -> list[Part]:
    nbytes = dict.fromkeys(PARTS, 0)
    for name, info in checkpoint.tensors.items():
        nbytes[part_of(name)] += prod(info.shape) * ITEM_SIZES.get(info.dtype, 1)
    formats: dict[str, dict[str, int]] = {part: {} for part in PARTS}
    for tensor in view or ():
        kind = _FORMATS[tensor.stored]
        kind = tensor.dtype.lower() if kind == "plain" else kind
        found = formats[part_of(tensor.name)]
        found[kind] = found.get(kind, 0) + prod(tensor.shape)
    return [
        Part(part, sum(formats[part].values()), nbytes[part], formats[part])
        for part in PARTS
        if nbytes[part] or formats[part]
    ]

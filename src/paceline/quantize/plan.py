"""What `quantize` will write, from headers alone: sparse files are enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, ConfigError, PairingError
from paceline.models.checkpoint import Checkpoint, read_config
from paceline.models.registry import architecture_of
from paceline.quantize.layout import (
    CALIBRATED,
    FOUR_BIT,
    MTP,
    Format,
    is_tied,
    linear_modules,
    module_tensors,
)
from paceline.quantize.mtp_head import check_head
from paceline.quantize.nvfp4 import BLOCK, ScaleChoice
from paceline.quantize.output_folder import OutputOptions
from paceline.quantize.recipe import Recipe, assign, load_recipe
from paceline.quantize.shards import TensorSpec
from paceline.quantize.stored import PlainTensor, PlainView
from paceline.quantize.stream import Item, arrange, specs

KEEP, DROP = "keep", "drop"


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Everything that `quantize` can be told, but what calibration needs."""

    recipe: str = "regular"
    """`regular`, `xs`, or the path of a .yaml file."""
    scales: ScaleChoice = "max"
    """How block scales of weights are chosen."""
    legacy_ab: bool = False
    """With `xs`: also `in_proj_a` and `in_proj_b`."""
    mtp: str = KEEP
    """The multi-token head: `keep` the model's own, `drop` it, or the folder to take it from."""
    shard_size: int = 5_000_000_000
    """Largest file, in bytes; a tensor that is larger gets one of its own."""
    requantize: bool = False
    """Accept a checkpoint that is quantised already: decode it first."""
    output: OutputOptions = field(default_factory=OutputOptions)


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """The files of the output, tensor by tensor, and the format of every linear module."""

    view: PlainView
    recipe: Recipe
    formats: dict[str, Format]
    files: dict[str, list[Item]]

    @property
    def tensors(self) -> list[TensorSpec]:
        """All tensors of the output."""
        return [spec for items in self.files.values() for spec in specs(items)]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the output."""
        return sum(spec.nbytes for spec in self.tensors)

    @property
    def calibrated(self) -> list[str]:
        """Modules whose activations are quantised too, so that their inputs must be measured."""
        return [module for module, fmt in self.formats.items() if fmt in CALIBRATED]

    def to_json(self) -> dict[str, Any]:
        """The object that `quantize --plan --json` prints."""
        tensors = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in self.tensors]
        return {"tensors": tensors, "count": len(tensors), "bytes": self.nbytes}


def plan_quantization(model: Path, options: QuantizeOptions) -> QuantizePlan:
    """Plan the quantisation of the folder `model`; reads headers only.

    Raises: ConfigError for options that do not fit (a recipe's rules included), CheckpointError,
    UnsupportedModelError or PairingError for a model or a head that cannot be used.
    """
    if options.shard_size <= 0:
        raise ConfigError("--shard-size must be positive, such as 5GB", key="shard_size")
    architecture_of(model, read_config(model))
    view = PlainView(Checkpoint.open(model))
    if view.quantized and not options.requantize:
        raise ConfigError(
            f"{model} is quantised already; start from the original, or give --requantize to decode it first",
            key="requantize",
        )
    recipe = load_recipe(options.recipe, legacy_ab=options.legacy_ab)
    headers = view.headers()
    modules = linear_modules(headers, tied=is_tied(view.checkpoint.config))
    fixed = [name.removesuffix(".weight") for name in headers if name.endswith(".weight")]
    formats = assign(recipe, modules, set(fixed) - set(modules))
    if all(fmt == "bf16" for fmt in formats.values()):
        raise ConfigError(f"recipe {recipe.name} quantises nothing of {model}", key="recipe")
    for module, fmt in formats.items():
        _check_columns(module, fmt, modules[module][1])
    items = [_item(tensor, source, formats) for tensor, source in _sources(view, options.mtp)]
    return QuantizePlan(view, recipe, formats, arrange(items, options.shard_size))


def as_stored(tensor: PlainTensor) -> TensorSpec:
    """The output of a tensor that is not quantised: the same; one that was quantised becomes BF16."""
    dtype = tensor.dtype if tensor.stored == "plain" else "BF16"
    return TensorSpec(tensor.name, dtype, tensor.shape)


def _sources(view: PlainView, mtp: str) -> list[tuple[PlainTensor, PlainView]]:
    """Every tensor of the output-to-be with the checkpoint that it is read from."""
    if mtp == KEEP:
        return [(tensor, view) for tensor in view]
    rest = [(tensor, view) for tensor in view if not tensor.name.startswith(MTP)]
    if mtp == DROP:
        return rest
    base = Path(mtp)
    if not base.is_dir():
        raise ConfigError(f"--mtp {mtp!r} is neither keep, drop nor a model's folder", key="mtp")
    donor = PlainView(Checkpoint.open(base))
    head = [tensor for tensor in donor if tensor.name.startswith(MTP)]
    if not head:
        raise PairingError(f"{base} has no multi-token head (no tensor begins with mtp.)")
    check_head({tensor.name: tensor.shape for tensor in head}, view.checkpoint, str(base))
    return [*rest, *((tensor, donor) for tensor in head)]


def _item(tensor: PlainTensor, source: PlainView, formats: dict[str, Format]) -> Item:
    module = tensor.name.removesuffix(".weight")
    fmt = formats.get(module, "bf16")
    if fmt == "bf16":
        return Item(tensor, source, (as_stored(tensor),))
    return Item(tensor, source, module_tensors(module, fmt, tensor.shape))


def _check_columns(module: str, fmt: Format, columns: int) -> None:
    if fmt in FOUR_BIT and columns % BLOCK:
        raise CheckpointError(
            f"{module}.weight has {columns} input columns; {fmt} needs a multiple of {BLOCK}. "
            "Keep it with a recipe file's rule of format bf16 or fp8"
        )

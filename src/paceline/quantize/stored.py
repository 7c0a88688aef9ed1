"""A checkpoint as its plain tensors, whatever they are stored as.

`PlainView` shows the original names and shapes; reading a tensor decodes it. It knows nvidia-modelopt's
NVFP4, W4A16_NVFP4 and FP8 (also mixed) and compressed-tensors' `nvfp4-pack-quantized`, each by the tensors
that are there, so that a wrong config cannot mislead it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint, Shape, TensorInfo
from paceline.quantize import fp8, nvfp4
from paceline.quantize.compressed import from_compressed

Stored = Literal["plain", "modelopt-nvfp4", "compressed-tensors-nvfp4", "fp8"]

SCALES = (
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "k_scale",
    "v_scale",
)
"""Last parts of the names of tensors that only describe another one."""
_OTHER_KINDS = {
    "pre_quant_scale": "NVFP4_AWQ (it rescales activations)",
    "weight_scale_inv": "block-wise FP8",
    "weight_zero_point": "an integer format with zero points",
    "qweight": "GPTQ or AWQ",
    "weight_quantizer._svdquant_lora_a": "NVFP4_SVD",
}


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """One original tensor and how it is stored."""

    name: str
    shape: Shape
    stored: Stored
    dtype: str
    """safetensors' name of what it is stored as; for a quantised one the dtype of its elements."""


class PlainView:
    """The plain tensors of an opened checkpoint, by their original names, in natural order."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises: CheckpointError for scales that are missing or mis-shaped, UnsupportedModelError for a kind
        of quantisation that is not read."""
        self.checkpoint = checkpoint
        self.tensors: dict[str, PlainTensor] = {}
        for name in sorted(checkpoint.tensors, key=natural):
            _refuse_other_kinds(checkpoint, name)
            if name.rpartition(".")[2] not in SCALES:
                tensor = _classify(checkpoint.tensors, name, str(checkpoint.path))
                self.tensors[tensor.name] = tensor

    @property
    def quantized(self) -> dict[str, Stored]:
        """How each quantised module is stored."""
        return {
            name.removesuffix(".weight"): tensor.stored
            for name, tensor in self.tensors.items()
            if tensor.stored != "plain"
        }

    def headers(self) -> dict[str, TensorInfo]:
        """Headers as an unquantised checkpoint would have; quantised modules count as BF16."""
        return {
            name: TensorInfo(t.shape, t.dtype if t.stored == "plain" else "BF16", self.checkpoint.path)
            for name, t in self.tensors.items()
        }

    def read(self, name: str) -> torch.Tensor:
        """One tensor: a plain one as stored, a quantised one decoded to float32."""
        stored, module, weight = (
            self.tensors[name].stored,
            name.removesuffix(".weight"),
            self.checkpoint.weight,
        )
        if stored == "plain":
            return weight(name)
        scale = weight(f"{module}.weight_scale")
        if stored == "fp8":
            return fp8.dequantize(weight(name), scale)
        if stored == "modelopt-nvfp4":
            return nvfp4.dequantize(nvfp4.Nvfp4(weight(name), scale, weight(f"{module}.weight_scale_2")))
        stored_parts = ("weight_packed", "weight_scale", "weight_global_scale")
        parts = from_compressed({part: weight(f"{module}.{part}") for part in stored_parts})
        return nvfp4.dequantize(nvfp4.Nvfp4(parts["weight"], scale, parts["weight_scale_2"]))

    def __iter__(self) -> Iterator[PlainTensor]:
        return iter(self.tensors.values())


@dataclass(frozen=True, slots=True)
class DecodedCheckpoint(Checkpoint):
    """A quantised checkpoint that looks like the plain one it was made from: names, shapes, config, weights.

    Whatever loads a plain `Checkpoint` loads it; decoded weights are float32 and still to be rounded to the
    model's dtype.
    """

    view: PlainView

    def weight(self, name: str) -> torch.Tensor:
        """Read one tensor into CPU memory, decoded where it is quantised."""
        return self.view.read(name)


def decoded(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` itself where nothing is quantised, else a view that decodes.

    Raises: as `PlainView`.
    """
    view = PlainView(checkpoint)
    if not view.quantized:
        return checkpoint
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    return DecodedCheckpoint(checkpoint.path, config, checkpoint.generation_config, view.headers(), view)


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sorting key by which layer 2 comes before layer 10."""
    return tuple((part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split("."))


def _classify(tensors: Mapping[str, TensorInfo], name: str, origin: str) -> PlainTensor:
    info, module = tensors[name], name.removesuffix(".weight").removesuffix(".weight_packed")
    if info.dtype == "U8" and name == f"{module}.weight":
        _need_block_scales(tensors, module, info, origin)
        _need(tensors, f"{module}.weight_scale_2", "F32", ((), (1,)), origin)
        return PlainTensor(name, (info.shape[0], 2 * info.shape[1]), "modelopt-nvfp4", info.dtype)
    if info.dtype == "U8" and name == f"{module}.weight_packed":
        _need_block_scales(tensors, module, info, origin)
        _need(tensors, f"{module}.weight_global_scale", "F32", ((), (1,)), origin)
        shape = (info.shape[0], 2 * info.shape[1])
        return PlainTensor(f"{module}.weight", shape, "compressed-tensors-nvfp4", info.dtype)
    if info.dtype == "F8_E4M3" and name == f"{module}.weight":
        rows = info.shape[0]
        _need(tensors, f"{module}.weight_scale", "F32", ((), (1,), (rows,), (rows, 1)), origin)
        return PlainTensor(name, info.shape, "fp8", info.dtype)
    if info.dtype in ("BF16", "F32", "F16"):
        return PlainTensor(name, info.shape, "plain", info.dtype)
    raise UnsupportedModelError(
        f"{origin}: tensor {name} is stored as {info.dtype} in a way that paceline does not read; it reads "
        "modelopt's NVFP4, W4A16_NVFP4 and FP8 and compressed-tensors' nvfp4-pack-quantized"
    )


def _need_block_scales(
    tensors: Mapping[str, TensorInfo], module: str, packed: TensorInfo, origin: str
) -> None:
    rows, half = packed.shape
    _need(tensors, f"{module}.weight_scale", "F8_E4M3", ((rows, 2 * half // nvfp4.BLOCK),), origin)


def _need(
    tensors: Mapping[str, TensorInfo], name: str, dtype: str, shapes: tuple[Shape, ...], origin: str
) -> None:
    info = tensors.get(name)
    if info is None:
        raise CheckpointError(
            f"{origin}: tensor {name} is missing, so the weight cannot be decoded; quantise again"
        )
    if info.dtype != dtype or info.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(
            f"{origin}: tensor {name} is {info.dtype} {list(info.shape)}; expected {dtype} {wanted}"
        )


def _refuse_other_kinds(checkpoint: Checkpoint, name: str) -> None:
    for ending, kind in _OTHER_KINDS.items():
        if name.endswith(f".{ending}"):
            raise UnsupportedModelError(
                f"{checkpoint.path}: tensor {name} belongs to {kind}, which paceline does not read; "
                "start from the unquantised checkpoint"
            )

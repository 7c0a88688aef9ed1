"""Quantised checkpoints as the plain ones they stand for: names, shapes and weights.

Headers come first here too: every missing, mis-shaped or surplus part and every value of a scale is checked
before a weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from paceline.config.model import Quantization
from paceline.errors import CheckpointError, ConfigError, UnsupportedModelError
from paceline.kernels.nvfp4 import BLOCK, PackedNVFP4, decode
from paceline.models.checkpoint import Checkpoint, Shape, TensorInfo
from paceline.models.quantization import HF_QUANT_CONFIG, Declared, Kind, Method, read_declared

_OTHER_KINDS = {
    "pre_quant_scale": "NVFP4_AWQ (it rescales activations)",
    "weight_quantizer._svdquant_lora_a": "NVFP4_SVD",
    "weight_scale_inv": "block-wise FP8",
    "weight_zero_point": "an integer format with zero points",
    "qweight": "GPTQ or AWQ",
}
_ONE: tuple[Shape, ...] = ((), (1,))
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class QuantizedModule:
    """One quantised matrix: which tensors hold it."""

    kind: Kind
    method: Method
    shape: Shape
    """[N, K] of the matrix."""
    weight: str
    scale: str
    global_scale: str | None
    """None for fp8. compressed-tensors stores what to divide by."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The tensors that say how to read the codes."""
        return (self.scale,) if self.global_scale is None else (self.scale, self.global_scale)


@dataclass(frozen=True, slots=True)
class QuantizedCheckpoint(Checkpoint):
    """A quantised checkpoint that shows the headers of a plain one; weights are decoded when read."""

    stored: Checkpoint
    """What is really in the files."""
    modules: Mapping[str, QuantizedModule]
    """By the plain weight's name."""
    algorithm: str
    kv_cache: str | None
    keep_packed: bool
    """Whether weights in 4 bits are to stay so, where that can be multiplied."""

    @property
    def has_four_bits(self) -> bool:
        """Whether any matrix is NVFP4."""
        return any(module.kind == "nvfp4" for module in self.modules.values())

    def weight(self, name: str) -> torch.Tensor:
        """Read one tensor into CPU memory: as stored, or decoded to float32."""
        if name not in self.modules:
            return self.stored.weight(name)
        return self.decoded(name, torch.float32, torch.device("cpu"))

    def decoded(self, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A quantised matrix [N, K], decoded in float32 and rounded to `dtype` once."""
        module = self.modules[name]
        if module.kind == "nvfp4":
            return decode(self.packed(name, dtype, device))
        values, scale = self.stored.weight(module.weight), self.stored.weight(module.scale)
        return _decode_fp8(values.to(device), scale.to(device), dtype)

    def packed(self, name: str, dtype: torch.dtype, device: torch.device) -> PackedNVFP4:
        """An NVFP4 matrix as it is stored; it decodes to `dtype`."""
        module, read = self.modules[name], self.stored.weight
        assert module.global_scale is not None
        scale = read(module.global_scale).float()
        if module.method == "compressed-tensors":
            scale = 1.0 / scale
        codes, scales = read(module.weight).to(device), read(module.scale).to(device)
        return PackedNVFP4.of(codes, scales, scale.to(device), dtype)


def as_plain(
    checkpoint: Checkpoint, quantization: Quantization = "auto", keep_packed: bool = False
) -> Checkpoint:
    """The checkpoint itself where nothing is quantised, else what it stands for; headers only.

    quantization: how it must be quantised, "auto" for whatever it says of itself.

    Raises: ConfigError where it is quantised otherwise, UnsupportedModelError for a format that is not read,
    CheckpointError for a missing or mis-shaped part or a contradiction.
    """
    declared = read_declared(checkpoint)
    modules = dict(_modules(checkpoint))
    _check_choice(checkpoint, declared, modules, quantization)
    if declared is not None:
        if not modules:
            raise CheckpointError(
                f"{declared.origin}: {declared.algorithm} is declared, but no weight is quantised; "
                "remove quantization_config, or fetch the weights again"
            )
        for name, module in modules.items():
            declared.check(name.removesuffix(".weight"), module.kind)
    if not modules:
        return checkpoint
    return QuantizedCheckpoint(
        path=checkpoint.path,
        config=checkpoint.config,
        generation_config=checkpoint.generation_config,
        tensors=_plain_headers(checkpoint.tensors, modules),
        stored=checkpoint,
        modules=modules,
        algorithm=declared.algorithm if declared else "NVFP4",
        kv_cache=declared.kv_cache if declared else None,
        keep_packed=keep_packed,
    )


def check_scales(checkpoint: Checkpoint, skipped: tuple[str, ...] = (), only: str = "") -> None:
    """Look at the values of all scales of modules whose name starts with `only` and with none of `skipped`.

    Raises: CheckpointError naming the tensor that holds NaN, infinite, negative or zero values.
    """
    if not isinstance(checkpoint, QuantizedCheckpoint):
        return
    for name, module in checkpoint.modules.items():
        if name.startswith(only) and not name.startswith(skipped):
            for part in module.parts:
                if fault := _fault(checkpoint.stored.weight(part)):
                    raise CheckpointError(
                        f"{checkpoint.path}: tensor {part} holds {fault} values; quantise the original again"
                    )


def _check_choice(
    checkpoint: Checkpoint,
    declared: Declared | None,
    modules: Mapping[str, QuantizedModule],
    wanted: Quantization,
) -> None:
    origin, found = checkpoint.path, "plain"
    if declared or modules:
        found = declared.method if declared else next(iter(modules.values())).method
    if wanted == "auto" and modules and declared is None:
        raise CheckpointError(
            f"{origin}: {next(iter(modules))} is quantised, but neither config.json nor {HF_QUANT_CONFIG} "
            f"says how; restore quantization_config, or vouch for it with --quantization {found}"
        )
    accepted = {"none": "plain", "modelopt_fp4": "modelopt"}.get(wanted, wanted)
    if wanted != "auto" and accepted != found:
        is_ = "not quantised" if found == "plain" else f"quantised by {found}"
        raise ConfigError(
            f"--quantization {wanted}: {origin} is {is_}; leave the flag out, or name another MODEL",
            key="quantization",
        )


def _modules(checkpoint: Checkpoint) -> Iterator[tuple[str, QuantizedModule]]:
    """Every quantised matrix by its plain name, with all its parts checked."""
    for name, info in checkpoint.tensors.items():
        for ending, kind in _OTHER_KINDS.items():
            if name.endswith(f".{ending}"):
                raise UnsupportedModelError(
                    f"{checkpoint.path}: tensor {name} belongs to {kind}, which paceline does not read; "
                    "start from the unquantised checkpoint"
                )
        if name.endswith(".weight_packed"):
            yield _four_bit(checkpoint, name, name.removesuffix("_packed"), "compressed-tensors")
        elif name.endswith(".weight") and info.dtype == "U8":
            yield _four_bit(checkpoint, name, name, "modelopt")
        elif name.endswith(".weight") and info.dtype == "F8_E4M3":
            rows = info.shape[0]
            _need(checkpoint, f"{name}_scale", "F32", (*_ONE, (rows,), (rows, 1)))
            yield name, QuantizedModule("fp8", "modelopt", info.shape, name, f"{name}_scale", None)


def _four_bit(checkpoint: Checkpoint, codes: str, plain: str, method: Method) -> tuple[str, QuantizedModule]:
    info = checkpoint.tensors[codes]
    if info.dtype != "U8" or len(info.shape) != 2 or info.shape[1] * 2 % BLOCK:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {codes} is {info.dtype} {list(info.shape)}; expected U8 [N, K/2], "
            f"K a multiple of {BLOCK}"
        )
    rows, columns = info.shape[0], 2 * info.shape[1]
    global_scale = f"{plain}_scale_2" if method == "modelopt" else f"{plain}_global_scale"
    _need(checkpoint, f"{plain}_scale", "F8_E4M3", ((rows, columns // BLOCK),))
    _need(checkpoint, global_scale, "F32", _ONE)
    return plain, QuantizedModule("nvfp4", method, (rows, columns), codes, f"{plain}_scale", global_scale)


def _need(checkpoint: Checkpoint, name: str, dtype: str, shapes: tuple[Shape, ...]) -> None:
    info = checkpoint.tensors.get(name)
    if info is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name} is missing, so its weight cannot be decoded; quantise "
            "again, or fetch the file that holds it"
        )
    if info.dtype != dtype or info.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name} is {info.dtype} {list(info.shape)}; expected {dtype} {wanted}"
        )


def _plain_headers(
    tensors: Mapping[str, TensorInfo], modules: Mapping[str, QuantizedModule]
) -> dict[str, TensorInfo]:
    used = {part for module in modules.values() for part in (module.weight, *module.parts)}
    for name in modules:
        module = name.removesuffix(".weight")
        used |= {f"{module}.{scale}" for scale in ("input_scale", "input_global_scale")}
        # scales of a quantised cache stand at the projections, or beside them
        used |= {f"{at}.{s}" for at in (module, module.rpartition(".")[0]) for s in ("k_scale", "v_scale")}
    plain = {name: info for name, info in tensors.items() if name not in used}
    return plain | {
        name: TensorInfo(module.shape, "BF16", tensors[module.weight].file)
        for name, module in modules.items()
    }


def _fault(scale: torch.Tensor) -> str | None:
    if scale.dtype is torch.float8_e4m3fn:
        codes = scale.view(torch.uint8)
        if int(codes.max()) < 0x7F:
            return None
        return "NaN" if bool(((codes & 0x7F) == 0x7F).any()) else "negative"
    if not bool(scale.isfinite().all()):
        return "NaN or infinite"
    if bool((scale < 0).any()):
        return "negative"
    return "zero" if scale.numel() == 1 and not bool(scale) else None


def _decode_fp8(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """FP8 values [N, K] times one scale, or one a row."""
    rows, columns = values.shape
    scale = scale.float().reshape(-1, 1).expand(rows, 1)
    weights = values.new_empty(rows, columns, dtype=dtype)
    step = max(1, _PIECE // columns)
    for first in range(0, rows, step):
        piece = slice(first, first + step)
        weights[piece] = (values[piece].float() * scale[piece]).to(dtype)
    return weights

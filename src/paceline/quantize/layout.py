"""Which modules of a checkpoint can be quantised, and what tensors a quantised one becomes.

Names are nvidia-modelopt's (`weight`, `weight_scale`, `weight_scale_2`, `input_scale`), which vLLM, SGLang
and TensorRT-LLM read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from paceline.models.checkpoint import Shape, TensorInfo
from paceline.quantize.nvfp4 import BLOCK
from paceline.quantize.shards import TensorSpec

Format = Literal["nvfp4", "w4a16_nvfp4", "fp8", "bf16"]
"""`bf16` means: as the source stores it."""

FOUR_BIT = ("nvfp4", "w4a16_nvfp4")
CALIBRATED = ("nvfp4", "fp8")
"""Formats that also quantise activations, so that they need an input scale."""

VISION = ("model.visual.", "visual.")
MTP = "mtp."
HEAD = "lm_head"
_ALWAYS_PLAIN = (*VISION, MTP)
_EMBEDDINGS = ("embed_tokens", "pos_embed")
_PLAIN_DTYPES = ("BF16", "F32", "F16")

FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
"""Projections that loaders run as one GEMM. It has one global scale, so the parts must share theirs: a part
with a smaller one would be decoded too large."""


def module_of(tensor: str) -> str:
    """The module whose `weight` this is; for any other tensor its own name."""
    return tensor.removesuffix(".weight")


def linear_modules(tensors: Mapping[str, TensorInfo], *, tied: bool) -> dict[str, Shape]:
    """The linear layers of the language model by module name: what a recipe may quantise.

    The vision tower, the multi-token head and embeddings are not among them, nor is a tied `lm_head`.
    """
    return {
        module_of(name): info.shape
        for name, info in tensors.items()
        if name.endswith(".weight")
        and len(info.shape) == 2
        and info.dtype in _PLAIN_DTYPES
        and not name.startswith(_ALWAYS_PLAIN)
        and name.split(".")[-2] not in _EMBEDDINGS
        and not (tied and module_of(name) == HEAD)
    }


def fused_group(module: str, modules: Collection[str]) -> tuple[str, ...]:
    """`module` with those of `modules` that one GEMM reads together with it, in the order of the rows."""
    parent, _, leaf = module.rpartition(".")
    for group in FUSED:
        if leaf in group:
            names = (f"{parent}.{name}" for name in group)
            return tuple(name for name in names if name == module or name in modules)
    return (module,)


def module_tensors(module: str, fmt: Format, shape: Shape) -> tuple[TensorSpec, ...]:
    """What a module of `shape` [out, in] is stored as in a quantised format."""
    rows, columns = shape
    if fmt in FOUR_BIT:
        assert columns % BLOCK == 0, (module, shape)
        specs = [
            TensorSpec(f"{module}.weight", "U8", (rows, columns // 2)),
            TensorSpec(f"{module}.weight_scale", "F8_E4M3", (rows, columns // BLOCK)),
            TensorSpec(f"{module}.weight_scale_2", "F32", ()),
        ]
    else:
        assert fmt == "fp8", fmt
        specs = [
            TensorSpec(f"{module}.weight", "F8_E4M3", shape),
            TensorSpec(f"{module}.weight_scale", "F32", ()),
        ]
    if fmt in CALIBRATED:
        specs.append(TensorSpec(f"{module}.input_scale", "F32", ()))
    return tuple(specs)


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether `lm_head` is the embedding table; a wrapper's own word counts before its text model's."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return bool(config.get("tie_word_embeddings", inner))

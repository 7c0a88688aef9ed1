"""Targets and DFlash drafters with random weights made on the device: a 27B model without 51 GB of files.

A `RandomCheckpoint` stands in for an opened folder: same names, shapes and config, but a weight comes into
being when it is read. So loading goes through the code that loads a published checkpoint.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.bench.shapes import QWEN_27B, HybridShape, Sizes, config_json, random_weight, tensor_sizes
from paceline.layers.attention import HeadShape
from paceline.models import dflash, dflash_config, qwen3_5, qwen3_5_config
from paceline.models.checkpoint import Checkpoint, TensorInfo
from paceline.models.parts import attention_tensors, mlp_tensors, norm_tensors

if TYPE_CHECKING:
    from paceline.models.base import TargetModel
    from paceline.models.dflash import DFlashDrafter
    from paceline.models.spec import TargetSpec


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """A DFlash drafter over a target's hidden size and vocabulary; full-attention layers only."""

    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: tuple[int, ...]
    mask_id: int
    block_size: int = 16


# The published drafter of Qwen3.6-27B has one full and four sliding layers; this is the form with five full
# ones that a peer was measured with.
DRAFTER_27B = DrafterShape(5, 17408, 32, 8, 128, taps=(1, 16, 31, 46, 61), mask_id=248070)
TINY = HybridShape("tiny", 64, 8, 96, 4, 2, 32, 2, 6, 16, vocab=512)
TINY_DRAFTER = DrafterShape(2, 96, 4, 2, 16, taps=(1, 3, 5), mask_id=511)
SHAPES: dict[str, tuple[HybridShape, DrafterShape]] = {
    "27b": (QWEN_27B, DRAFTER_27B),
    "tiny": (TINY, TINY_DRAFTER),
}


@dataclass(frozen=True, slots=True)
class RandomCheckpoint(Checkpoint):
    """A checkpoint whose weights are drawn when they are read; one name always gives the same values."""

    device: torch.device
    plain_norms: bool
    """Whether a norm's stored weight is the factor itself, as in a drafter, or w of (1 + w)."""

    def weight(self, name: str) -> torch.Tensor:
        """The tensor in bf16, on the device."""
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        weight = random_weight(name, self.tensors[name].shape, generator)
        if self.plain_norms and name.endswith("norm.weight"):
            weight += 1
        return weight.to(torch.bfloat16)


def _checkpoint(
    name: str, config: Mapping[str, Any], sizes: Mapping[str, Sizes], device: torch.device, plain_norms: bool
) -> RandomCheckpoint:
    path = Path(f"random-{name}")
    tensors = {tensor: TensorInfo(size, "BF16", path) for tensor, size in sizes.items()}
    return RandomCheckpoint(path, config, {}, tensors, device, plain_norms)


def target_checkpoint(shape: HybridShape, device: torch.device) -> RandomCheckpoint:
    """A target's checkpoint."""
    return _checkpoint(shape.name, config_json(shape), tensor_sizes(shape), device, plain_norms=False)


def load_random_target(shape: HybridShape, device: torch.device, max_positions: int) -> TargetModel:
    """A bf16 target; deterministic on a CPU, as the engine is there."""
    checkpoint = target_checkpoint(shape, device)
    spec = qwen3_5_config.read_spec(checkpoint, torch.bfloat16)
    return qwen3_5.load(checkpoint, spec, device, device.type == "cpu", max_positions)


def load_random_drafter(
    shape: DrafterShape, target: TargetSpec, device: torch.device, drafts: int, max_positions: int
) -> DFlashDrafter:
    """A bf16 drafter for a target of these numbers, after the usual pairing checks."""
    checkpoint = drafter_checkpoint(shape, target, device)
    spec = dflash_config.read_spec(checkpoint, target, drafts)
    return dflash.load(checkpoint, spec, device, device.type == "cpu", max_positions)


def drafter_checkpoint(shape: DrafterShape, target: TargetSpec, device: torch.device) -> RandomCheckpoint:
    """A drafter's checkpoint in the published format."""
    sizes = _drafter_sizes(shape, target.hidden_size)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate,
        "vocab_size": target.vocab_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": target.max_position,
        "layer_types": ["full_attention"] * shape.layers,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000_000,
        "hidden_act": "silu",
        "block_size": shape.block_size,
        "dflash_config": {"mask_token_id": shape.mask_id, "target_layer_ids": list(shape.taps)},
    }
    return _checkpoint("drafter", config, sizes, device, plain_norms=True)


def _drafter_sizes(shape: DrafterShape, hidden: int) -> dict[str, Sizes]:
    """The 3 + 11 * layers tensors."""
    heads = HeadShape(shape.heads, shape.kv_heads, shape.head_dim, 1e-6, zero_centred=False)
    sizes: dict[str, Sizes] = {
        "fc.weight": (hidden, len(shape.taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(shape.layers):
        layer = f"layers.{i}."
        sizes |= norm_tensors(layer, hidden) | mlp_tensors(f"{layer}mlp.", hidden, shape.intermediate)
        sizes |= attention_tensors(f"{layer}self_attn.", hidden, heads, gated=False)
    return sizes

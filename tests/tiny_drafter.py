"""Tiny random DFlash drafters in the published format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.tiny_files import VOCAB, Weights, mlp, norms, random_weight, write_folder


@dataclass(frozen=True)
class TinyDrafter:
    """A DFlash drafter's sizes over the target "plain"."""

    hidden_size: int = 64
    intermediate_size: int = 80
    vocab_size: int = VOCAB
    num_attention_heads: int = 6
    num_key_value_heads: int = 3
    head_dim: int = 16
    max_position_embeddings: int = 1024
    block_size: int = 8
    mask_token_id: int = VOCAB - 1
    target_layer_ids: tuple[int, ...] | None = (0, 2, 3)
    layer_types: tuple[str, ...] = ("full_attention", "full_attention")
    sliding_window: int | None = None
    rope_theta: float = 10_000.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further top-level fields, e.g. is_causal or rope_scaling."""
    nested: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of dflash_config, e.g. causal."""


def drafter_weights(shape: TinyDrafter, seed: int = 1) -> Weights:
    """The 3 + 11 * layers tensors of a DFlash drafter, in float32."""
    torch.manual_seed(seed)
    hidden, layers = shape.hidden_size, len(shape.layer_types)
    taps = layers if shape.target_layer_ids is None else len(shape.target_layer_ids)
    weights = {
        "fc.weight": random_weight(hidden, taps * hidden),
        "hidden_norm.weight": 1 + random_weight(hidden, std=0.1),
        "norm.weight": 1 + random_weight(hidden, std=0.1),
    }
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    for i in range(layers):
        layer = f"layers.{i}."
        weights |= {name: 1 + weight for name, weight in norms(layer, hidden).items()}
        weights |= mlp(layer, hidden, shape.intermediate_size)
        weights |= {
            f"{layer}self_attn.q_proj.weight": random_weight(queries, hidden),
            f"{layer}self_attn.k_proj.weight": random_weight(keys, hidden),
            f"{layer}self_attn.v_proj.weight": random_weight(keys, hidden),
            f"{layer}self_attn.o_proj.weight": random_weight(hidden, queries),
            f"{layer}self_attn.q_norm.weight": 1 + random_weight(shape.head_dim, std=0.1),
            f"{layer}self_attn.k_norm.weight": 1 + random_weight(shape.head_dim, std=0.1),
        }
    assert len(weights) == 3 + 11 * layers
    return weights


def drafter_config(
    shape: TinyDrafter, *, in_dflash_config: bool = False, rope_nested: bool = False
) -> dict[str, Any]:
    """A config in the published format, in either of its two places for block_size and rope_theta."""
    taps = {} if shape.target_layer_ids is None else {"target_layer_ids": list(shape.target_layer_ids)}
    block = {"block_size": shape.block_size}
    theta = {"rope_theta": shape.rope_theta}
    names = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: getattr(shape, name) for name in names},
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "num_hidden_layers": len(shape.layer_types),
        "layer_types": list(shape.layer_types),
        "sliding_window": shape.sliding_window,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "dtype": "float32",
        **({} if in_dflash_config else block),
        **({"rope_parameters": {"rope_type": "default", **theta}} if rope_nested else theta),
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            **taps,
            **(block if in_dflash_config else {}),
            **shape.nested,
        },
        **shape.extra,
    }


def make_drafter(
    folder: Path,
    shape: TinyDrafter | None = None,
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    in_dflash_config: bool = False,
    rope_nested: bool = False,
) -> Path:
    """Write a random DFlash drafter. Returns `folder`."""
    shape = shape or TinyDrafter()
    config = drafter_config(shape, in_dflash_config=in_dflash_config, rope_nested=rope_nested)
    write_folder(folder, config, drafter_weights(shape, seed=seed), dtype)
    return folder

"""Tiny random models for tests, written as folders in Hugging Face layout: target, MTP head, drafter,
tokenizer.

Shapes follow the published checkpoints; sizes are small enough that a folder is written in milliseconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.tiny_drafter import TinyDrafter, make_drafter
from tests.tiny_files import (
    EOS,
    IM_END,
    VOCAB,
    Weights,
    mlp,
    norms,
    random_weight,
    write_folder,
    write_json,
    write_tokenizer,
)

__all__ = [
    "EOS", "IM_END", "MTP", "TARGETS", "VOCAB", "TinyDrafter", "TinyTarget", "Weights", "drafter_for",
    "make_drafter", "make_target", "mtp_weights", "target_config", "target_weights", "write_folder",
    "write_json", "write_tokenizer",
]  # fmt: skip

MTP = "mtp."


@dataclass(frozen=True)
class TinyTarget:
    """A hybrid target's sizes; `TARGETS` names several."""

    hidden_size: int = 64
    intermediate_size: int = 96
    vocab_size: int = VOCAB
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 16
    linear_value_head_dim: int = 16
    full_attention_interval: int = 4
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000_000.0

    @property
    def layer_types(self) -> list[str]:
        interval = self.full_attention_interval
        return [
            "linear_attention" if (i + 1) % interval else "full_attention"
            for i in range(self.num_hidden_layers)
        ]


TARGETS = {
    "plain": TinyTarget(),
    # 3 value heads a key head, as in the 27B; two full layers; dk != dv
    "three": TinyTarget(
        num_hidden_layers=6,
        full_attention_interval=3,
        linear_num_value_heads=6,
        linear_value_head_dim=32,
        num_attention_heads=6,
    ),
    # one value head a key head and a tied head, as in the 0.8B
    "tied": TinyTarget(linear_num_value_heads=2, tie_word_embeddings=True, num_key_value_heads=4),
    # starts with attention, one kv head, an odd hidden size
    "odd": TinyTarget(
        hidden_size=80,
        num_hidden_layers=3,
        full_attention_interval=1,
        num_key_value_heads=1,
        num_attention_heads=5,
    ),
    "wide": TinyTarget(
        hidden_size=128, num_hidden_layers=8, linear_key_head_dim=32, linear_value_head_dim=32
    ),
}
"""Shapes by name. "odd" has full attention only."""


def target_weights(shape: TinyTarget, seed: int = 0) -> Weights:
    """All tensors of a target under `model.`, and its MTP head under `mtp.`, in float32."""
    torch.manual_seed(seed)
    weights = {
        "model.embed_tokens.weight": random_weight(shape.vocab_size, shape.hidden_size, std=1.0),
        "model.norm.weight": random_weight(shape.hidden_size, std=0.1),
    }
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = random_weight(shape.vocab_size, shape.hidden_size)
    for i, kind in enumerate(shape.layer_types):
        layer = f"model.layers.{i}."
        weights |= norms(layer, shape.hidden_size) | mlp(layer, shape.hidden_size, shape.intermediate_size)
        weights |= _gated_attention(layer, shape) if kind == "full_attention" else _delta(layer, shape)
    return weights | mtp_weights(shape)


def mtp_weights(shape: TinyTarget) -> Weights:
    """The 15 tensors of an MTP head."""
    hidden, layer = shape.hidden_size, f"{MTP}layers.0."
    return {
        f"{MTP}fc.weight": random_weight(hidden, 2 * hidden),
        f"{MTP}pre_fc_norm_embedding.weight": random_weight(hidden, std=0.1),
        f"{MTP}pre_fc_norm_hidden.weight": random_weight(hidden, std=0.1),
        f"{MTP}norm.weight": random_weight(hidden, std=0.1),
        **norms(layer, hidden),
        **mlp(layer, hidden, shape.intermediate_size),
        **_gated_attention(layer, shape),
    }


def target_config(shape: TinyTarget, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A flat `qwen3_5_text` config."""
    sizes = asdict(shape)
    rope = {name: sizes.pop(name) for name in ("partial_rotary_factor", "rope_theta")}
    return {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        **sizes,
        "layer_types": shape.layer_types,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "eos_token_id": EOS,
        "bos_token_id": EOS,
        "dtype": str(dtype).removeprefix("torch."),
        "rope_parameters": {"rope_type": "default", **rope},
    }


def make_target(
    folder: Path,
    shape: TinyTarget | str = "plain",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    nested: bool = False,
    shards: int = 1,
    mtp: bool = True,
    vision: bool = False,
    tokenizer: bool = True,
) -> Path:
    """Write a random target. nested: the wrapper layout (`text_config`, `model.language_model.*`); shards:
    files; vision: some tensors of a vision tower as well. Returns `folder`."""
    shape = TARGETS[shape] if isinstance(shape, str) else shape
    weights = target_weights(shape, seed)
    config = target_config(shape, dtype)
    if not mtp:
        weights = {name: weight for name, weight in weights.items() if not name.startswith(MTP)}
    if nested:
        weights = {_nested(name): weight for name, weight in weights.items()}
        config.pop("architectures")
        config["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
        config = {
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": config,
            "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 32},
            "tie_word_embeddings": shape.tie_word_embeddings,
            "dtype": config["dtype"],
        }
    if vision:
        weights["model.visual.pos_embed.weight"] = random_weight(4, 32)
    write_folder(folder, config, weights, dtype, shards)
    write_json(folder / "generation_config.json", {"eos_token_id": [IM_END, EOS], "bos_token_id": EOS})
    if tokenizer:
        write_tokenizer(folder, shape.vocab_size)
    return folder


def drafter_for(shape: TinyTarget | str = "plain", **changes: Any) -> TinyDrafter:
    """A drafter that fits the target `shape`."""
    shape = TARGETS[shape] if isinstance(shape, str) else shape
    changes.setdefault("mask_token_id", shape.vocab_size - 1)
    fitting = TinyDrafter(hidden_size=shape.hidden_size, vocab_size=shape.vocab_size)
    return replace(fitting, **changes)


def _nested(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def _gated_attention(layer: str, shape: TinyTarget) -> Weights:
    hidden, dim = shape.hidden_size, shape.head_dim
    queries, keys = shape.num_attention_heads * dim, shape.num_key_value_heads * dim
    return {
        f"{layer}self_attn.q_proj.weight": random_weight(2 * queries, hidden),
        f"{layer}self_attn.k_proj.weight": random_weight(keys, hidden),
        f"{layer}self_attn.v_proj.weight": random_weight(keys, hidden),
        f"{layer}self_attn.o_proj.weight": random_weight(hidden, queries),
        f"{layer}self_attn.q_norm.weight": random_weight(dim, std=0.1),
        f"{layer}self_attn.k_norm.weight": random_weight(dim, std=0.1),
    }


def _delta(layer: str, shape: TinyTarget) -> Weights:
    hidden, heads = shape.hidden_size, shape.linear_num_value_heads
    values = heads * shape.linear_value_head_dim
    channels = 2 * shape.linear_num_key_heads * shape.linear_key_head_dim + values
    return {
        f"{layer}linear_attn.in_proj_qkv.weight": random_weight(channels, hidden),
        f"{layer}linear_attn.in_proj_z.weight": random_weight(values, hidden),
        f"{layer}linear_attn.in_proj_b.weight": random_weight(heads, hidden),
        f"{layer}linear_attn.in_proj_a.weight": random_weight(heads, hidden),
        f"{layer}linear_attn.conv1d.weight": random_weight(channels, 1, 4, std=0.5),
        f"{layer}linear_attn.A_log": torch.empty(heads).uniform_(0.05, 1.0).log(),
        f"{layer}linear_attn.dt_bias": random_weight(heads, std=0.5),
        f"{layer}linear_attn.norm.weight": 1 + random_weight(shape.linear_value_head_dim, std=0.1),
        f"{layer}linear_attn.out_proj.weight": random_weight(hidden, values),
    }

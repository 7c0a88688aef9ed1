"""Tiny random llama, qwen2 and qwen3 targets for tests, written as folders in Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tests.tiny_drafter import TinyDrafter
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

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class TinyDense:
    """A dense target's sizes; `DENSE` names several."""

    model_type: str
    hidden_size: int = 64
    intermediate_size: int = 96
    vocab_size: int = VOCAB
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False
    rope_theta: float = 10_000.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of config.json, e.g. rope_scaling or attention_bias."""

    @property
    def biased(self) -> tuple[str, ...]:
        """The projections of attention that have a bias."""
        if self.model_type == "qwen2":
            return ("q_proj", "k_proj", "v_proj")
        return ("q_proj", "k_proj", "v_proj", "o_proj") if self.extra.get("attention_bias") else ()


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DENSE = {
    # a tied head and three query heads a key head, as SmolLM2
    "llama": TinyDense("llama", num_attention_heads=6, tie_word_embeddings=True, hidden_size=96),
    # scaled positions, as Llama 3.1
    "llama3": TinyDense("llama", rope_theta=500_000.0, extra={"rope_scaling": LLAMA3_ROPE}),
    "qwen2": TinyDense("qwen2", num_key_value_heads=1),
    # heads wider than hidden_size / num_attention_heads, as in the small Qwen3 models
    "qwen3": TinyDense("qwen3", head_dim=32, rope_theta=1_000_000.0),
    "biased": TinyDense("qwen3", extra={"attention_bias": True}),
}
"""Shapes by name."""


def dense_weights(shape: TinyDense, seed: int = 0) -> Weights:
    """All tensors of a target, in float32."""
    torch.manual_seed(seed)
    hidden = shape.hidden_size
    weights = {
        "model.embed_tokens.weight": random_weight(shape.vocab_size, hidden, std=1.0),
        "model.norm.weight": 1 + random_weight(hidden, std=0.1),
    }
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = random_weight(shape.vocab_size, hidden)
    for i in range(shape.num_hidden_layers):
        layer = f"model.layers.{i}."
        weights |= {name: 1 + weight for name, weight in norms(layer, hidden).items()}
        weights |= mlp(layer, hidden, shape.intermediate_size) | _attention(f"{layer}self_attn.", shape)
    return weights


def dense_config(shape: TinyDense, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A config in the published style: rope_theta at the top level."""
    names = (
        "model_type", "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
        "tie_word_embeddings", "rope_theta",
    )  # fmt: skip
    return {
        "architectures": [ARCHITECTURES[shape.model_type]],
        **{name: getattr(shape, name) for name in names},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "eos_token_id": EOS,
        "bos_token_id": EOS,
        "dtype": str(dtype).removeprefix("torch."),
        **shape.extra,
    }


def make_dense(
    folder: Path,
    shape: TinyDense | str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    tokenizer: bool = True,
) -> Path:
    """Write a random dense target. Returns `folder`."""
    shape = DENSE[shape] if isinstance(shape, str) else shape
    write_folder(folder, dense_config(shape, dtype), dense_weights(shape, seed), dtype, shards)
    write_json(folder / "generation_config.json", {"eos_token_id": [IM_END, EOS], "bos_token_id": EOS})
    if tokenizer:
        write_tokenizer(folder, shape.vocab_size)
    return folder


def drafter_for_dense(shape: TinyDense | str, **changes: Any) -> TinyDrafter:
    """A drafter that fits the dense target `shape`."""
    shape = DENSE[shape] if isinstance(shape, str) else shape
    changes.setdefault("mask_token_id", shape.vocab_size - 1)
    changes.setdefault("target_layer_ids", (0, shape.num_hidden_layers - 1))
    return replace(TinyDrafter(hidden_size=shape.hidden_size, vocab_size=shape.vocab_size), **changes)


def _attention(prefix: str, shape: TinyDense) -> Weights:
    hidden, dim = shape.hidden_size, shape.head_dim
    queries, keys = shape.num_attention_heads * dim, shape.num_key_value_heads * dim
    rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    weights = {f"{prefix}{name}.weight": random_weight(count, hidden) for name, count in rows.items()}
    weights[f"{prefix}o_proj.weight"] = random_weight(hidden, queries)
    for name in shape.biased:
        weights[f"{prefix}{name}.bias"] = random_weight(rows.get(name, hidden), std=0.5)
    if shape.model_type == "qwen3":
        weights |= {f"{prefix}{name}_norm.weight": 1 + random_weight(dim, std=0.1) for name in ("q", "k")}
    return weights

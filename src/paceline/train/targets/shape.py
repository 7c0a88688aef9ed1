"""A hybrid's sizes: from settings, and as the config.json of a published folder."""

from __future__ import annotations

from typing import Any

import torch

from paceline.layers.rotary import RopeSpec
from paceline.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, TargetSpec
from paceline.train.settings.target import ModelShape

_SAME_FOR_ALL: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 0,
    "mtp_use_dedicated_embeddings": False,
    "pad_token_id": None,
    "use_cache": True,
    "dtype": "bfloat16",
}


def spec_of(shape: ModelShape, tokens: int, eos_ids: tuple[int, ...]) -> TargetSpec:
    """The sizes that the section ``model`` means for a tokenizer of `tokens` ids."""
    every = shape.full_attention_interval
    layers = range(1, shape.num_hidden_layers + 1)
    return TargetSpec(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocab_size or -(-tokens // 64) * 64,
        num_layers=shape.num_hidden_layers,
        layer_types=tuple(LINEAR_ATTENTION if i % every else FULL_ATTENTION for i in layers),
        num_heads=shape.num_attention_heads,
        kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        rope=RopeSpec(shape.rope_theta, shape.rotary_dim),
        max_position=shape.max_position_embeddings,
        rms_eps=shape.rms_norm_eps,
        eos_ids=eos_ids,
        bos_id=None,
        dtype=torch.bfloat16,
        tied=shape.tie_word_embeddings,
        mtp_layers=0,
        num_key_heads=shape.linear_num_key_heads,
        num_value_heads=shape.linear_num_value_heads,
        key_dim=shape.linear_key_head_dim,
        value_dim=shape.linear_value_head_dim,
        conv_width=shape.linear_conv_kernel_dim,
    )


def hybrid_config(spec: TargetSpec) -> dict[str, Any]:
    """config.json of a hybrid without a multi-token head, as transformers' Qwen3_5ForCausalLM reads it."""
    half = spec.rope.rotary_dim // 2
    third = half // 3
    assert spec.rope.yarn is None and spec.rope.llama3 is None
    return {
        **_SAME_FOR_ALL,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "layer_types": list(spec.layer_types),
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "linear_num_key_heads": spec.num_key_heads,
        "linear_num_value_heads": spec.num_value_heads,
        "linear_key_head_dim": spec.key_dim,
        "linear_value_head_dim": spec.value_dim,
        "linear_conv_kernel_dim": spec.conv_width,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.rms_eps,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": spec.rope.theta,
            "partial_rotary_factor": spec.rope.rotary_dim / spec.head_dim,
            "mrope_section": [half - 2 * third, third, third],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": spec.tied,
        "bos_token_id": spec.bos_id,
        "eos_token_id": list(spec.eos_ids),
    }

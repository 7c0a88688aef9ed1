"""Rotary tables against transformers' own frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.layers.rotary import (
    TABLE_SLACK,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
    inverse_frequencies,
    rotary_tables,
)

YARNS: list[dict[str, Any]] = [
    {"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0},
    {"factor": 4.0, "original_max_position_embeddings": 32768},
    {"factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
    {"factor": 8.0, "original_max_position_embeddings": 2048, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"factor": 8.0, "original_max_position_embeddings": 2048, "truncate": False},
    {"factor": 1.0, "original_max_position_embeddings": 128},
]


@pytest.mark.parametrize("fields", YARNS)
@pytest.mark.parametrize("head_dim", [16, 128])
def test_yarn(fields: dict[str, Any], head_dim: int) -> None:
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = Qwen3Config(
        head_dim=head_dim,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **fields},
    )
    expected, scale = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    ours = dict(fields)
    yarn = YarnScaling(original_max_position=ours.pop("original_max_position_embeddings"), **ours)
    got = inverse_frequencies(RopeSpec(1e6, head_dim, yarn))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    assert yarn.table_scale == pytest.approx(scale)


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 64), (1.0, 128)])
def test_llama3(factor: float, original: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": original, **fields}
    config = LlamaConfig(head_dim=128, max_position_embeddings=131072, rope_parameters=rope)
    expected, scale = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    spec = RopeSpec(5e5, 128, llama3=Llama3Scaling(original_max_position=original, **fields))
    torch.testing.assert_close(inverse_frequencies(spec), expected, rtol=1e-6, atol=0)
    assert scale == 1.0
    plain = inverse_frequencies(RopeSpec(5e5, 128))
    assert torch.equal(inverse_frequencies(spec), plain) == (factor == 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_default_tables_are_transformers_bits(dtype: torch.dtype) -> None:
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    module = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(head_dim=256, rope_parameters=rope))
    cos, sin = module(torch.zeros(1, dtype=dtype), torch.arange(500)[None, None])
    tables = rotary_tables(RopeSpec(1e7, 64), 500, dtype)
    assert tables.cos.shape == (500 + TABLE_SLACK, 32)
    assert torch.equal(tables.cos[:500], cos[0, :, :32]) and torch.equal(tables.sin[:500], sin[0, :, :32])

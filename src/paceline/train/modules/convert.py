"""A hybrid out of a dense decoder: embeddings and feed-forward layers kept, three of four mixers replaced.

Follows the idea of converting attention to a linear recurrence by starting from its projections (Kasai et al.
2021, arXiv 2103.13076): queries, keys and values keep their matrices, key and value heads repeated so that
every head of the recurrence has its own. The conv starts as the identity and the output gate near zero, so
that a fresh recurrent layer adds little at first and disturbs little.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, TargetSpec
from paceline.train.modules.dense import Dense, DenseBlock
from paceline.train.modules.hybrid import Hybrid, HybridBlock
from paceline.train.modules.initial import init_decay


def kept_layers(count: int, layers: int) -> list[int]:
    """Which `count` of `layers` layers stay: evenly spread, first and last among them."""
    if count == 1:
        return [0]
    return [round(i * (layers - 1) / (count - 1)) for i in range(count)]


def hybrid_spec(
    source: Dense, layers: int, interval: int, vocab: int, max_position: int, eos_ids: tuple[int, ...]
) -> TargetSpec:
    """The sizes of the hybrid that `convert` makes: `layers` layers of which every `interval`-th keeps its
    attention, and the first `vocab` rows of the embedding table."""
    c = source.spec
    kinds = tuple(LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(layers))
    return TargetSpec(
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        vocab_size=vocab,
        num_layers=layers,
        layer_types=kinds,
        num_heads=c.num_heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        rope=c.rope,
        max_position=max_position,
        rms_eps=c.rms_eps,
        eos_ids=eos_ids,
        bos_id=None,
        dtype=torch.bfloat16,
        tied=True,
        mtp_layers=0,
        num_key_heads=c.num_heads,
        num_value_heads=c.num_heads,
        key_dim=c.head_dim,
        value_dim=c.head_dim,
        conv_width=4,
    )


@torch.no_grad()
def convert(source: Dense, target: Hybrid) -> None:
    """Fill `target` (sizes from `hybrid_spec`) from `source`."""
    target.embed_tokens.weight.copy_(source.embed_tokens.weight[: target.vocab_size])
    target.norm.weight.copy_(source.norm.weight - 1)
    for i, block in zip(kept_layers(target.num_layers, source.num_layers), target.layers, strict=True):
        old = source.layers[i]
        assert isinstance(old, DenseBlock) and isinstance(block, HybridBlock)
        block.input_layernorm.weight.copy_(old.input_layernorm.weight - 1)
        block.post_attention_layernorm.weight.copy_(old.post_attention_layernorm.weight - 1)
        block.mlp.load_state_dict(old.mlp.state_dict())
        if block.full:
            _convert_attention(old, block)
        else:
            _convert_mixer(old, block)


def _convert_attention(old: DenseBlock, block: HybridBlock) -> None:
    """The gate's rows are zero, so that it lets half through, and the output matrix makes up for it."""
    new, heads, dim = block.self_attn, old.self_attn.heads, old.self_attn.dim
    query = old.self_attn.q_proj.weight.unflatten(0, (heads, dim))
    new.q_proj.weight.copy_(torch.cat([query, torch.zeros_like(query)], 1).flatten(0, 1))
    new.k_proj.weight.copy_(old.self_attn.k_proj.weight)
    new.v_proj.weight.copy_(old.self_attn.v_proj.weight)
    new.o_proj.weight.copy_(2 * old.self_attn.o_proj.weight)
    new.q_norm.weight.zero_()
    new.k_norm.weight.zero_()


def _convert_mixer(old: DenseBlock, block: HybridBlock) -> None:
    new, attention = block.linear_attn, old.self_attn
    repeats = attention.heads // attention.kv_heads

    def repeated(weight: Tensor) -> Tensor:
        return weight.unflatten(0, (attention.kv_heads, -1)).repeat_interleave(repeats, 0).flatten(0, 1)

    parts = [attention.q_proj.weight, repeated(attention.k_proj.weight), repeated(attention.v_proj.weight)]
    new.in_proj_qkv.weight.copy_(torch.cat(parts))
    new.out_proj.weight.copy_(attention.o_proj.weight)
    for gate in (new.in_proj_z, new.in_proj_a, new.in_proj_b):
        gate.weight.normal_(0, 0.02)
    new.conv1d.weight.normal_(0, 0.02)[..., -1] += 1
    new.norm.weight.fill_(1)
    init_decay(new.A_log, new.dt_bias)

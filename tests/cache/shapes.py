"""Model numbers for cache tests: a tiny hybrid, and the published 27B with its drafter and head."""

from __future__ import annotations

import torch

from paceline.cache.tensors import CacheShape
from paceline.layers.rotary import RopeSpec
from paceline.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, DrafterSpec, MTPSpec, TargetSpec


def target(
    *,
    layers: int,
    interval: int,
    hidden: int,
    kv_heads: int,
    head_dim: int,
    key_heads: int,
    value_heads: int,
    state_dim: int,
    dtype: torch.dtype,
) -> TargetSpec:
    """A hybrid in which every `interval`-th layer has full attention."""
    kinds = [LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(layers)]
    return TargetSpec(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        vocab_size=128,
        num_layers=layers,
        layer_types=tuple(kinds),
        num_heads=2 * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=RopeSpec(1e7, head_dim // 4),
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=state_dim,
        value_dim=state_dim,
        conv_width=4,
        max_position=262144,
        rms_eps=1e-6,
        eos_ids=(0,),
        bos_id=None,
        dtype=dtype,
        tied=False,
        mtp_layers=1,
    )


def drafter(*, layers: int, hidden: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> DrafterSpec:
    """A DFlash drafter of full-attention layers."""
    return DrafterSpec(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        vocab_size=128,
        num_layers=layers,
        num_heads=2 * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=RopeSpec(1e7, head_dim),
        max_position=262144,
        rms_eps=1e-6,
        block_size=16,
        mask_token_id=1,
        target_layer_ids=(1,),
        windows=(None,) * layers,
        causal=(False,) * layers,
        dtype=dtype,
    )


def head(of: TargetSpec) -> MTPSpec:
    """The multi-token head of a target."""
    return MTPSpec(
        hidden_size=of.hidden_size,
        intermediate_size=of.intermediate_size,
        num_heads=of.num_heads,
        kv_heads=of.kv_heads,
        head_dim=of.head_dim,
        rope=of.rope,
        max_position=of.max_position,
        rms_eps=of.rms_eps,
        dtype=of.dtype,
    )


BIG = target(
    layers=64, interval=4, hidden=5120, kv_heads=4, head_dim=256, key_heads=16, value_heads=48, state_dim=128,
    dtype=torch.bfloat16,
)  # fmt: skip
BIG_DRAFTER = drafter(layers=5, hidden=5120, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
TINY = target(
    layers=4, interval=2, hidden=16, kv_heads=1, head_dim=8, key_heads=1, value_heads=2, state_dim=4,
    dtype=torch.bfloat16,
)  # fmt: skip
TINY_DRAFTER = drafter(layers=3, hidden=16, kv_heads=2, head_dim=4, dtype=torch.bfloat16)


def tiny_shape(*, block_size: int = 8, num_drafts: int = 3, proposers: bool = True) -> CacheShape:
    """The tiny hybrid, with a drafter and a head unless told otherwise."""
    return CacheShape.of(
        TINY,
        TINY_DRAFTER if proposers else None,
        head(TINY) if proposers else None,
        block_size=block_size,
        num_drafts=num_drafts,
    )

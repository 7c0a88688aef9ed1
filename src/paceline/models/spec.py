"""What a model is, in numbers: shapes, positions, special ids. Read from `config.json` alone, before any
weight.

The cache, the plan and the pairing checks work from these, so they never need the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.kernels.gated_delta.base import DeltaShape
from paceline.layers.rotary import RopeSpec

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
SLIDING_ATTENTION = "sliding_attention"


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target: full-attention layers and, in a hybrid, gated delta-net layers. Sizes are element counts."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    """Rows of the embedding table; the tokenizer may name fewer."""
    num_layers: int
    layer_types: tuple[str, ...]
    """`full_attention` or `linear_attention`, one a layer."""
    num_heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    max_position: int
    rms_eps: float
    eos_ids: tuple[int, ...]
    """Every id that ends a text: generation_config's joined with config's, ascending."""
    bos_id: int | None
    dtype: torch.dtype
    tied: bool
    mtp_layers: int
    """Layers of the multi-token head stored beside the model; 0 when there is none."""
    quantization: str | None = None
    """How the checkpoint is quantised, in its own words; None: it is not."""
    num_key_heads: int = 0
    """Key heads of the recurrence; this and the next four are 0 where no layer is recurrent."""
    num_value_heads: int = 0
    key_dim: int = 0
    """Size of one key head of the recurrence (dk)."""
    value_dim: int = 0
    """Size of one value head of the recurrence (dv)."""
    conv_width: int = 0

    @property
    def delta_shape(self) -> DeltaShape:
        """Sizes of one recurrent layer, as its state is allocated by; only a hybrid has them."""
        return DeltaShape(
            self.num_key_heads, self.num_value_heads, self.key_dim, self.value_dim, self.conv_width
        )

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: queries, keys and values of the recurrence."""
        return self.delta_shape.conv_dim

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Ids of the layers that have a KV cache, in order."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == FULL_ATTENTION)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Ids of the layers that have a recurrent state, in order."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR_ATTENTION)


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A DFlash drafter: its own attention geometry over the target's hidden size and vocabulary."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_layers: int
    num_heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    max_position: int
    rms_eps: float
    block_size: int
    """Rows of a block: the anchor and block_size - 1 masks."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    """Target layers whose OUTPUT is tapped, in the order of concatenation."""
    windows: tuple[int | None, ...]
    """One a layer: the query at p sees the key at q only if p - q < window; None sees everything."""
    causal: tuple[bool, ...]
    """One a layer: whether a block row sees only itself and earlier rows of its block."""
    dtype: torch.dtype

    @property
    def max_speculative_tokens(self) -> int:
        """Tokens that one block can draft."""
        return self.block_size - 1


@dataclass(frozen=True, slots=True)
class MTPSpec:
    """A multi-token head: one gated full-attention layer of the target's geometry with its own KV cache."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    max_position: int
    rms_eps: float
    dtype: torch.dtype

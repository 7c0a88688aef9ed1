"""Parts that several architectures share: their tensors' names and shapes, and how they are loaded.

Projections of the same input are fused into one matrix at load, so that a pass reads its input once and small
matrices do not cost a call each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.kernels.linear import Linear, make_fused
from paceline.layers.attention import GatedAttention, HeadShape, PagedHeads
from paceline.layers.mlp import Mlp

if TYPE_CHECKING:
    from paceline.layers.rotary import RotaryTables
    from paceline.models.checkpoint import Shape
    from paceline.models.weights import WeightReader


def norm_tensors(prefix: str, hidden: int) -> dict[str, Shape]:
    """The two norms of a decoder layer."""
    return {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}


def attention_tensors(prefix: str, hidden: int, shape: HeadShape, *, gated: bool) -> dict[str, Shape]:
    """An attention layer; a gated one has twice the query rows."""
    return {
        f"{prefix}q_proj.weight": (shape.query_size * (2 if gated else 1), hidden),
        f"{prefix}k_proj.weight": (shape.kv_size, hidden),
        f"{prefix}v_proj.weight": (shape.kv_size, hidden),
        f"{prefix}o_proj.weight": (hidden, shape.query_size),
        f"{prefix}q_norm.weight": (shape.head_dim,),
        f"{prefix}k_norm.weight": (shape.head_dim,),
    }


def mlp_tensors(prefix: str, hidden: int, intermediate: int) -> dict[str, Shape]:
    """A SwiGLU layer."""
    return {
        f"{prefix}gate_proj.weight": (intermediate, hidden),
        f"{prefix}up_proj.weight": (intermediate, hidden),
        f"{prefix}down_proj.weight": (hidden, intermediate),
    }


def load_linear(read: WeightReader, names: list[str], deterministic: bool) -> Linear:
    """One linear layer of the projections `names`, fused in that order."""
    return make_fused([read.matrix(f"{name}.weight") for name in names], deterministic=deterministic)


def load_heads(read: WeightReader, shape: HeadShape, rotary: RotaryTables) -> PagedHeads:
    """Query and key norms and the rotation of an attention layer."""
    return PagedHeads(shape, read("q_norm.weight"), read("k_norm.weight"), rotary)


def load_gated_attention(
    read: WeightReader, shape: HeadShape, rotary: RotaryTables, deterministic: bool
) -> GatedAttention:
    """A gated attention layer."""
    return GatedAttention(
        load_heads(read, shape, rotary),
        load_linear(read, ["q_proj", "k_proj", "v_proj"], deterministic),
        load_linear(read, ["o_proj"], deterministic),
    )


def load_mlp(read: WeightReader, deterministic: bool) -> Mlp:
    """A SwiGLU layer."""
    return Mlp(
        load_linear(read, ["gate_proj", "up_proj"], deterministic),
        load_linear(read, ["down_proj"], deterministic),
    )

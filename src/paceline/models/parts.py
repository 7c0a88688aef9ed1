"""Parts that several architectures share: their tensors' names and shapes, and how they are loaded.

Projections of the same input are fused into one matrix at load, so that a pass reads its input once and small
matrices do not cost a call each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.errors import CheckpointError
from paceline.kernels.linear import Linear, make_fused, make_gated, make_linear
from paceline.layers.attention import GatedAttention, HeadShape, PagedHeads, PlainAttention
from paceline.layers.mlp import Mlp

if TYPE_CHECKING:
    from paceline.layers.rotary import RotaryTables
    from paceline.models.checkpoint import Shape
    from paceline.models.weights import WeightReader


EMBEDDING = "embed_tokens.weight"
"""The embedding table, below the text tower's prefix."""
HEAD = "lm_head.weight"


def norm_tensors(prefix: str, hidden: int) -> dict[str, Shape]:
    """The two norms of a decoder layer."""
    return {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}


def attention_tensors(
    prefix: str,
    hidden: int,
    shape: HeadShape,
    *,
    gated: bool,
    head_norms: bool = True,
    biased: tuple[str, ...] = (),
) -> dict[str, Shape]:
    """An attention layer; a gated one has twice the query rows. biased: projections with a bias."""
    shapes: dict[str, Shape] = {
        f"{prefix}q_proj.weight": (shape.query_size * (2 if gated else 1), hidden),
        f"{prefix}k_proj.weight": (shape.kv_size, hidden),
        f"{prefix}v_proj.weight": (shape.kv_size, hidden),
        f"{prefix}o_proj.weight": (hidden, shape.query_size),
    }
    shapes |= {f"{prefix}{name}.bias": shapes[f"{prefix}{name}.weight"][:1] for name in biased}
    if head_norms:
        shapes |= {f"{prefix}{name}.weight": (shape.head_dim,) for name in ("q_norm", "k_norm")}
    return shapes


def mlp_tensors(prefix: str, hidden: int, intermediate: int) -> dict[str, Shape]:
    """A SwiGLU layer."""
    return {
        f"{prefix}gate_proj.weight": (intermediate, hidden),
        f"{prefix}up_proj.weight": (intermediate, hidden),
        f"{prefix}down_proj.weight": (hidden, intermediate),
    }


def load_linear(read: WeightReader, names: list[str], deterministic: bool, *, biased: bool = False) -> Linear:
    """One linear layer of the projections `names`, fused in that order; biased: each has a bias."""
    bias = torch.cat([read(f"{name}.bias") for name in names]) if biased else None
    return make_fused([read.matrix(f"{name}.weight") for name in names], bias, deterministic=deterministic)


def load_heads(
    read: WeightReader, shape: HeadShape, rotary: RotaryTables, *, head_norms: bool = True
) -> PagedHeads:
    """Query and key norms, where there are any, and the rotation of an attention layer."""
    q_norm, k_norm = (read(f"{name}_norm.weight") if head_norms else None for name in ("q", "k"))
    return PagedHeads(shape, q_norm, k_norm, rotary)


def load_gated_attention(
    read: WeightReader, shape: HeadShape, rotary: RotaryTables, deterministic: bool
) -> GatedAttention:
    """A gated attention layer."""
    return GatedAttention(
        load_heads(read, shape, rotary),
        load_linear(read, ["q_proj", "k_proj", "v_proj"], deterministic),
        load_linear(read, ["o_proj"], deterministic),
    )


def load_plain_attention(
    read: WeightReader,
    shape: HeadShape,
    rotary: RotaryTables,
    deterministic: bool,
    *,
    head_norms: bool = True,
    biased: tuple[str, ...] = (),
) -> PlainAttention:
    """An attention layer without a gate; `head_norms` and `biased` as in `attention_tensors`."""
    return PlainAttention(
        load_heads(read, shape, rotary, head_norms=head_norms),
        load_linear(read, ["q_proj", "k_proj", "v_proj"], deterministic, biased="q_proj" in biased),
        load_linear(read, ["o_proj"], deterministic, biased="o_proj" in biased),
    )


def load_head(read: WeightReader, tied: bool, embedding: torch.Tensor, deterministic: bool) -> Linear:
    """The output head: the embedding table where `tied`, else the checkpoint's own; `read` has no prefix.

    Raises: CheckpointError for a tied checkpoint that holds another head than its embedding table.
    """
    checkpoint = read.checkpoint
    if not tied:
        return load_linear(read, [HEAD.removesuffix(".weight")], deterministic)
    if HEAD in checkpoint.tensors and not torch.equal(read(HEAD), embedding):
        raise CheckpointError(
            f"{checkpoint.path}: tensor {HEAD} differs from the embedding table although config.json ties "
            "them; set tie_word_embeddings to false or remove the tensor"
        )
    return make_linear(embedding, deterministic=deterministic)


def load_mlp(read: WeightReader, deterministic: bool) -> Mlp:
    """A SwiGLU layer."""
    gate, up = read.matrix("gate_proj.weight"), read.matrix("up_proj.weight")
    return Mlp(
        make_gated(gate, up, deterministic=deterministic),
        load_linear(read, ["down_proj"], deterministic),
    )

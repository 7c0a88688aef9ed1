"""Qwen3.5 and Qwen3.6, dense text tower: three GatedDeltaNet layers to every gated attention layer.

Formulas: transformers 5.24 `modeling_qwen3_5.py`, the oracle of tests/models/test_qwen3_5.py. Norm weights
are stored as w of (1 + w), except the norm inside a GatedDeltaNet layer. For text all three mRoPE rows are
equal, so positions rotate as in ordinary RoPE.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from paceline.kernels.gated_delta import DeltaWeights
from paceline.kernels.linear import Linear
from paceline.kernels.norm import add_rms_norm, rms_norm
from paceline.layers.attention import GatedAttention
from paceline.layers.gated_delta_net import GatedDeltaNet
from paceline.layers.rotary import RotaryTables, rotary_tables
from paceline.models.base import TargetOutput
from paceline.models.checkpoint import Checkpoint
from paceline.models.parts import EMBEDDING, load_gated_attention, load_head, load_linear, load_mlp
from paceline.models.quantized import check_scales
from paceline.models.qwen3_5_config import (
    MTP_PREFIX,
    VISION_PREFIXES,
    attention_shape,
    text_prefix,
    vision_tensors,
)
from paceline.models.spec import FULL_ATTENTION, TargetSpec
from paceline.models.weights import WeightReader

if TYPE_CHECKING:
    from paceline.layers.batch import FlatBatch
    from paceline.layers.mlp import Mlp
    from paceline.models.base import TargetCache


@dataclass(frozen=True, slots=True)
class _Block:
    """One decoder layer."""

    mixer: GatedAttention | GatedDeltaNet
    mlp: Mlp
    input_norm: torch.Tensor
    post_norm: torch.Tensor


class Qwen35Model:
    """The target model; see `models.base.TargetModel` for the contract."""

    def __init__(
        self,
        spec: TargetSpec,
        embedding: torch.Tensor,
        blocks: list[_Block],
        norm: torch.Tensor,
        head: Linear,
    ) -> None:
        self.spec = spec
        self.embedding, self._blocks, self._head = embedding, blocks, head
        # The norm that follows each layer's residual sum: the next layer's, at last the final one.
        self._following = [block.input_norm for block in blocks[1:]] + [norm]

    @property
    def head(self) -> Linear:
        """The output head alone, for those who keep hidden states and let the rest of the model go."""
        return self._head

    def forward(
        self, ids: torch.Tensor, batch: FlatBatch, cache: TargetCache, taps: tuple[int, ...] = ()
    ) -> TargetOutput:
        """Run rows `ids` [R]; writes keys, values and recurrent rows into `cache`."""
        eps = self.spec.rms_eps
        stream = self.embed(ids)
        normed = rms_norm(stream, self._blocks[0].input_norm, eps, True)
        kv, delta, tapped = iter(cache.kv), iter(cache.delta), {}
        for i, (block, following) in enumerate(zip(self._blocks, self._following, strict=True)):
            if isinstance(block.mixer, GatedAttention):
                mixed = block.mixer(normed, batch, next(kv))
            else:
                mixed = block.mixer(normed, batch, next(delta))
            normed, stream = add_rms_norm(mixed, stream, block.post_norm, eps, True)
            normed, stream = add_rms_norm(block.mlp(normed), stream, following, eps, True)
            if i in taps:
                tapped[i] = stream
        features = torch.cat([tapped[i] for i in taps], dim=1) if taps else None
        return TargetOutput(normed, features)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] -> [R, vocab_size] float32."""
        return self._head(hidden, out_dtype=torch.float32)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[R] int64 -> [R, hidden_size]."""
        return F.embedding(ids, self.embedding)


def load(
    checkpoint: Checkpoint,
    spec: TargetSpec,
    device: torch.device,
    deterministic: bool,
    max_positions: int | None = None,
) -> Qwen35Model:
    """Load the weights of a checkpoint that `read_spec` has accepted.

    `max_positions` bounds the rotary tables where sequences will be shorter than the model's maximum.
    """
    if vision := vision_tensors(checkpoint):
        warnings.warn(
            f"{checkpoint.path}: {len(vision)} vision tensors are ignored; paceline runs the text tower only",
            stacklevel=2,
        )
    check_scales(checkpoint, skipped=(MTP_PREFIX, *VISION_PREFIXES))
    read = WeightReader(checkpoint, text_prefix(checkpoint), spec.dtype, device)
    positions = min(spec.max_position, max_positions or spec.max_position)
    rotary = rotary_tables(spec.rope, positions, spec.dtype, device)
    blocks = [
        _load_block(read.below(f"layers.{i}."), i, spec, rotary, deterministic)
        for i in range(spec.num_layers)
    ]
    embedding = read(EMBEDDING)
    head = load_head(WeightReader(checkpoint, "", spec.dtype, device), spec.tied, embedding, deterministic)
    return Qwen35Model(spec, embedding, blocks, read("norm.weight"), head)


def _load_block(
    read: WeightReader, layer: int, spec: TargetSpec, rotary: RotaryTables, deterministic: bool
) -> _Block:
    mixer: GatedAttention | GatedDeltaNet
    if spec.layer_types[layer] == FULL_ATTENTION:
        mixer = load_gated_attention(read.below("self_attn."), attention_shape(spec), rotary, deterministic)
    else:
        mixer = _load_delta(read.below("linear_attn."), spec, deterministic)
    mlp = load_mlp(read.below("mlp."), deterministic)
    return _Block(mixer, mlp, read("input_layernorm.weight"), read("post_attention_layernorm.weight"))


def _load_delta(read: WeightReader, spec: TargetSpec, deterministic: bool) -> GatedDeltaNet:
    weights = DeltaWeights(
        conv=read("conv1d.weight").squeeze(1),
        # fp32 before exp and softplus, as stored in bf16 they would lose the decay's small differences.
        A_log=read("A_log", torch.float32),
        dt_bias=read("dt_bias", torch.float32),
        norm=read("norm.weight"),
        eps=spec.rms_eps,
        Hk=spec.num_key_heads,
        Hv=spec.num_value_heads,
        dk=spec.key_dim,
        dv=spec.value_dim,
    )
    projection = load_linear(read, ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"], deterministic)
    return GatedDeltaNet(weights, projection, load_linear(read, ["out_proj"], deterministic))

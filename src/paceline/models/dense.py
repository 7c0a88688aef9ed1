"""Llama, Qwen2 and Qwen3: decoders of full attention and SwiGLU, without recurrent layers.

Formulas: transformers 5.24 `modeling_llama.py`, `modeling_qwen2.py` and `modeling_qwen3.py`, the oracles of
tests/models/test_dense.py. Norm weights are plain factors; every head dimension is rotated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from paceline.kernels.linear import Linear
from paceline.kernels.norm import add_rms_norm, rms_norm
from paceline.layers.attention import PlainAttention
from paceline.layers.rotary import RotaryTables, rotary_tables
from paceline.models.base import TargetOutput
from paceline.models.checkpoint import Checkpoint
from paceline.models.dense_config import PREFIX, DenseSpec, attention_shape
from paceline.models.parts import EMBEDDING, load_head, load_mlp, load_plain_attention
from paceline.models.quantized import check_scales
from paceline.models.spec import TargetSpec
from paceline.models.weights import WeightReader

if TYPE_CHECKING:
    from paceline.layers.batch import FlatBatch
    from paceline.layers.mlp import Mlp
    from paceline.models.base import TargetCache


@dataclass(frozen=True, slots=True)
class _Block:
    """One decoder layer."""

    attention: PlainAttention
    mlp: Mlp
    input_norm: torch.Tensor
    post_norm: torch.Tensor


class DenseModel:
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
        """The output head alone."""
        return self._head

    def forward(
        self, ids: torch.Tensor, batch: FlatBatch, cache: TargetCache, taps: tuple[int, ...] = ()
    ) -> TargetOutput:
        """Run rows `ids` [R]; writes keys and values into `cache`. The batch's state slots are not read."""
        eps = self.spec.rms_eps
        stream = self.embed(ids)
        normed = rms_norm(stream, self._blocks[0].input_norm, eps, False)
        tapped = {}
        for i, (block, following, kv) in enumerate(zip(self._blocks, self._following, cache.kv, strict=True)):
            mixed = block.attention(normed, batch, kv)
            normed, stream = add_rms_norm(mixed, stream, block.post_norm, eps, False)
            normed, stream = add_rms_norm(block.mlp(normed), stream, following, eps, False)
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
) -> DenseModel:
    """Load the weights of a checkpoint that `dense_config.read_spec` has accepted.

    `max_positions` bounds the rotary tables where sequences will be shorter than the model's maximum.
    """
    assert isinstance(spec, DenseSpec), spec
    check_scales(checkpoint)
    read = WeightReader(checkpoint, PREFIX, spec.dtype, device)
    positions = min(spec.max_position, max_positions or spec.max_position)
    rotary = rotary_tables(spec.rope, positions, spec.dtype, device)
    blocks = [
        _load_block(read.below(f"layers.{i}."), spec, rotary, deterministic) for i in range(spec.num_layers)
    ]
    embedding = read(EMBEDDING)
    head = load_head(WeightReader(checkpoint, "", spec.dtype, device), spec.tied, embedding, deterministic)
    return DenseModel(spec, embedding, blocks, read("norm.weight"), head)


def _load_block(read: WeightReader, spec: DenseSpec, rotary: RotaryTables, deterministic: bool) -> _Block:
    attention = load_plain_attention(
        read.below("self_attn."),
        attention_shape(spec),
        rotary,
        deterministic,
        head_norms=spec.head_norms,
        biased=spec.biased,
    )
    mlp = load_mlp(read.below("mlp."), deterministic)
    return _Block(attention, mlp, read("input_layernorm.weight"), read("post_attention_layernorm.weight"))

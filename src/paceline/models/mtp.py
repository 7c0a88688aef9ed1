"""The multi-token head of a Qwen3.5 / Qwen3.6 checkpoint: one gated attention layer that guesses one token
ahead.

For row i it takes the target's hidden h_i (after the final norm) and the token t_{i+1} that follows, and its
output through the target's output matrix predicts t_{i+2}: x = fc [norm_e(embed(t_{i+1})) ; norm_h(h_i)],
one decoder layer with a cache of its own, then a norm. Its output is fed back as the hidden of the next
draft. The row of (h_i, t_{i+1}) lives at position i+1, so that what is cached at a position depends on
nothing after it; position 0 has no row. Oracle: transformers' generic MtpModel (tests/models/test_mtp.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.errors import PairingError, UnsupportedModelError
from paceline.kernels.norm import add_rms_norm, rms_norm
from paceline.layers.attention import HeadShape
from paceline.layers.batch import PagedRows
from paceline.layers.rotary import rotary_tables
from paceline.models.checkpoint import Checkpoint, Shape, check_tensors
from paceline.models.parts import (
    attention_tensors,
    load_gated_attention,
    load_linear,
    load_mlp,
    mlp_tensors,
    norm_tensors,
)
from paceline.models.quantized import check_scales
from paceline.models.qwen3_5_config import MTP_PREFIX
from paceline.models.spec import MTPSpec
from paceline.models.weights import WeightReader

if TYPE_CHECKING:
    from paceline.models.base import KVPair, TargetModel
    from paceline.models.spec import TargetSpec

_LAYER = "layers.0."


class MTPHead:
    """A loaded head; it shares the target's embedding table and owns no state."""

    def __init__(
        self, spec: MTPSpec, read: WeightReader, target: TargetModel, deterministic: bool, positions: int
    ) -> None:
        self.spec = spec
        self._target = target
        layer = read.below(_LAYER)
        rotary = rotary_tables(spec.rope, positions, spec.dtype, read.device)
        self._attention = load_gated_attention(layer.below("self_attn."), _shape(spec), rotary, deterministic)
        self._mlp = load_mlp(layer.below("mlp."), deterministic)
        self._fc = load_linear(read, ["fc"], deterministic)
        self._embedding_norm = read("pre_fc_norm_embedding.weight")
        self._hidden_norm = read("pre_fc_norm_hidden.weight")
        self._input_norm = layer("input_layernorm.weight")
        self._post_norm = layer("post_attention_layernorm.weight")
        self._norm = read("norm.weight")

    def forward(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        row_seq: torch.Tensor,
        block_tables: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv: KVPair,
        max_context: int,
    ) -> torch.Tensor:
        """Run rows (hidden [R, H] of position p-1, token `ids` [R] of position p = `positions` [R] >= 1).

        `row_seq` [R] indexes `block_tables` [S, B]; `slot_mapping` [R] says where the row's key and value go.
        A row sees positions 1..p; a row at position 0 is padding. Returns [R, H] after the head's norm: what
        the target's `logits` takes, and the hidden of the next draft.
        """
        rows = PagedRows(
            positions=positions,
            row_seq=row_seq,
            row_first=torch.ones_like(positions),
            row_last=positions,
            slot_mapping=slot_mapping,
            block_tables=block_tables,
            max_context=max_context,
        )
        eps = self.spec.rms_eps
        embedded = rms_norm(self._target.embed(ids), self._embedding_norm, eps, True)
        stream = self._fc(torch.cat([embedded, rms_norm(hidden, self._hidden_norm, eps, True)], dim=1))
        mixed = self._attention(rms_norm(stream, self._input_norm, eps, True), rows, kv)
        normed, stream = add_rms_norm(mixed, stream, self._post_norm, eps, True)
        normed, _ = add_rms_norm(self._mlp(normed), stream, self._norm, eps, True)
        return normed


def read_spec(checkpoint: Checkpoint, target: TargetSpec) -> MTPSpec:
    """The head's numbers, after every check that needs no weight.

    Raises: PairingError where the folder holds no head, or one with a tensor missing; CheckpointError for a
    surplus or mis-shaped tensor; UnsupportedModelError for a head of several layers or with an embedding
    table of its own.
    """
    tensors = {name: info for name, info in checkpoint.tensors.items() if name.startswith(MTP_PREFIX)}
    if not tensors:
        raise PairingError(
            f"{checkpoint.path} holds no multi-token head (no {MTP_PREFIX}* tensors); use another method"
        )
    if target.mtp_layers > 1:
        raise UnsupportedModelError(
            f"{checkpoint.path}: the multi-token head has {target.mtp_layers} layers; paceline runs one"
        )
    if f"{MTP_PREFIX}embed_tokens.weight" in tensors:
        raise UnsupportedModelError(
            f"{checkpoint.path}: the multi-token head has its own embedding table "
            "(mtp_use_dedicated_embeddings); paceline shares the target's"
        )
    spec = MTPSpec(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        rope=target.rope,
        max_position=target.max_position,
        rms_eps=target.rms_eps,
        dtype=target.dtype,
    )
    check_tensors(tensors, _tensor_shapes(spec), str(checkpoint.path), missing_error=PairingError)
    return spec


def load(
    checkpoint: Checkpoint,
    spec: MTPSpec,
    target: TargetModel,
    device: torch.device,
    deterministic: bool,
    max_positions: int | None = None,
) -> MTPHead:
    """Load the weights of a head that `read_spec` has accepted; `max_positions` as in `qwen3_5.load`."""
    check_scales(checkpoint, only=MTP_PREFIX)
    read = WeightReader(checkpoint, MTP_PREFIX, spec.dtype, device)
    positions = min(spec.max_position, max_positions or spec.max_position)
    return MTPHead(spec, read, target, deterministic, positions)


def _shape(spec: MTPSpec) -> HeadShape:
    return HeadShape(spec.num_heads, spec.kv_heads, spec.head_dim, spec.rms_eps, zero_centred=True)


def _tensor_shapes(spec: MTPSpec) -> dict[str, Shape]:
    hidden, layer = spec.hidden_size, MTP_PREFIX + _LAYER
    norms = ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight")
    shapes: dict[str, Shape] = {f"{MTP_PREFIX}{name}": (hidden,) for name in norms}
    shapes[f"{MTP_PREFIX}fc.weight"] = (hidden, 2 * hidden)
    return (
        shapes
        | norm_tensors(layer, hidden)
        | attention_tensors(f"{layer}self_attn.", hidden, _shape(spec), gated=True)
        | mlp_tensors(f"{layer}mlp.", hidden, spec.intermediate_size)
    )

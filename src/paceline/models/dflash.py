"""DFlash: a block-diffusion drafter that guesses a whole block of tokens in one pass.

Chen, Liang, Liu 2026 (arXiv 2602.06036). The target's residual stream at K tapped layers is concatenated,
projected and normed once into a context row per position; every drafter layer keeps that row's keys and
values. A block of query rows [anchor, mask, mask, ...] at positions s, s+1, ... attends to the context
(positions < s) and to itself, and row j >= 1 predicts the token AT position s+j. Embedding table and output
matrix are the target's. Context rows do not pass the layers' input norm, queries or feed-forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.kernels.dflash import BestDrafts, Blocks, DrafterParts, LayerParts, native_drafter
from paceline.kernels.linear import Linear
from paceline.kernels.norm import add_rms_norm, rms_norm
from paceline.kernels.product import native_product
from paceline.kernels.sample import greedy, lead
from paceline.layers.attention import PlainAttention
from paceline.layers.mlp import Mlp
from paceline.layers.rotary import RotaryTables, rotary_tables
from paceline.models.checkpoint import Checkpoint
from paceline.models.dflash_block import BlockRequest, block_rows
from paceline.models.dflash_config import attention_shape
from paceline.models.parts import load_linear, load_mlp, load_plain_attention
from paceline.models.quantized import check_scales
from paceline.models.spec import DrafterSpec
from paceline.models.weights import WeightReader

if TYPE_CHECKING:
    from paceline.models.base import KVPair, TargetModel


@dataclass(frozen=True, slots=True)
class _Layer:
    """One drafter layer; `attention` serves the block's rows, the context's keys and values come from the
    fused matrix."""

    attention: PlainAttention
    mlp: Mlp
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    window: int | None
    causal: bool


class DFlashDrafter:
    """A loaded drafter; the engine owns its keys and values, one pair a layer, under the target's block
    ids."""

    def __init__(
        self,
        spec: DrafterSpec,
        layers: list[_Layer],
        fc: Linear,
        context_kv: Linear,
        hidden_norm: torch.Tensor,
        norm: torch.Tensor,
    ) -> None:
        self.spec = spec
        self._layers, self._fc, self._context_kv = layers, fc, context_kv
        self._hidden_norm = hidden_norm
        self._kinds = {(layer.window, layer.causal) for layer in layers}
        self._following = [layer.input_norm for layer in layers[1:]] + [norm]
        self.native = native_drafter(self._parts())
        """The same passes in one call each, where the CPU has them; None: they are composed of operators."""

    def append_context(
        self,
        features: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv: list[KVPair],
    ) -> None:
        """Store the context rows of `features` [R, K * H] (tapped layers, in tap order) at `positions` [R].

        `slot_mapping` [R] says where (block id * block size + offset); rows to be dropped point into the
        null block. Rows beyond the drafter's maximum length are stored wrongly rotated: no block may be
        drafted there, and the engine drafts none.
        """
        if self.native:
            return self.native.context(features, positions, slot_mapping, kv)
        positions = positions.clamp(max=self.spec.max_position - 1)
        context = rms_norm(self._fc(features), self._hidden_norm, self.spec.rms_eps, False)
        size = self.spec.kv_heads * self.spec.head_dim
        pairs = self._context_kv(context).split(2 * size, dim=1)
        for layer, pair, layer_kv in zip(self._layers, pairs, kv, strict=True):
            k, v = pair.split(size, dim=1)
            layer.attention.heads.store(k, v, positions, slot_mapping, layer_kv)

    def draft(self, request: BlockRequest, kv: list[KVPair], target: TargetModel) -> torch.Tensor:
        """One block a sequence.

        The context of a sequence is what is stored before its start; the block's own keys and values are
        written at starts..starts+n as scratch, to be overwritten before they could become context.

        Returns [S, wanted, H]: rows 1..wanted after the final norm, for the target's `logits`; row j predicts
        the token at position start + j.
        """
        if self.native:
            return self.native.block(self._blocks(request, kv, target))
        n = self._checked(request).n
        block = block_rows(
            request.starts, request.block_tables, n, request.counts, kv[0][0].shape[1], self._limit(request)
        )
        seen = {kind: block.seen_by(*kind) for kind in self._kinds}
        ids = request.anchors.new_full((request.anchors.shape[0], n + 1), self.spec.mask_token_id)
        ids[:, 0] = request.anchors
        eps = self.spec.rms_eps
        stream = target.embed(ids.flatten())
        normed = rms_norm(stream, self._layers[0].input_norm, eps, False)
        for layer, following, layer_kv in zip(self._layers, self._following, kv, strict=True):
            mixed = layer.attention(normed, seen[layer.window, layer.causal], layer_kv)
            normed, stream = add_rms_norm(mixed, stream, layer.post_norm, eps, False)
            normed, stream = add_rms_norm(layer.mlp(normed), stream, following, eps, False)
        return normed.unflatten(0, (-1, n + 1))[:, 1 : request.wanted + 1]

    def best_drafts(
        self,
        request: BlockRequest,
        kv: list[KVPair],
        target: TargetModel,
        ids: int,
        asked: torch.Tensor | None = None,
    ) -> BestDrafts:
        """The likeliest of the first `ids` token ids for each wanted draft of `draft`, and by how much they
        lead over the ids `asked` [S, wanted] (negative: any number)."""
        head = native_product(target.head)
        if self.native and head:
            return self.native.drafts(self._blocks(request, kv, target), head, ids, asked)
        hidden = self.draft(request, kv, target)
        logits = target.logits(hidden.reshape(-1, hidden.shape[-1]))
        best = greedy(logits[:, :ids]).view(hidden.shape[:2])
        if asked is None:
            return BestDrafts(best, None)
        return BestDrafts(best, lead(logits.view(*best.shape, -1), best, asked))

    def _blocks(self, request: BlockRequest, kv: list[KVPair], target: TargetModel) -> Blocks:
        """The request as the native calls take it."""
        r, limit = self._checked(request), self._limit(request)
        return Blocks(
            r.anchors, r.starts, r.block_tables, r.counts, r.n + 1, r.wanted, limit, target.embedding, kv
        )

    def _checked(self, request: BlockRequest) -> BlockRequest:
        n, spec = request.n, self.spec
        assert 1 <= n <= spec.max_speculative_tokens, f"{n} drafts of a block of {spec.block_size}"
        assert 1 <= request.wanted <= n, f"{request.wanted} of {n} drafts wanted"
        return request

    def _limit(self, request: BlockRequest) -> int:
        return min(request.max_context, self.spec.max_position)

    def _parts(self) -> DrafterParts:
        spec, heads = self.spec, self._layers[0].attention.heads
        layers = [
            LayerParts(
                qkv=layer.attention.qkv,
                out=layer.attention.out,
                gated=layer.mlp.gated,
                down=layer.mlp.down,
                q_norm=layer.attention.heads.q_norm,
                k_norm=layer.attention.heads.k_norm,
                post_norm=layer.post_norm,
                following=following,
                window=layer.window,
                causal=layer.causal,
            )
            for layer, following in zip(self._layers, self._following, strict=True)
        ]
        return DrafterParts(
            layers, self._fc, self._context_kv, self._hidden_norm, self._layers[0].input_norm,
            heads.rotary.cos, heads.rotary.sin, spec.num_heads, spec.kv_heads, spec.head_dim,
            spec.max_position, spec.mask_token_id, spec.rms_eps,
        )  # fmt: skip


def load(
    checkpoint: Checkpoint,
    spec: DrafterSpec,
    device: torch.device,
    deterministic: bool,
    max_positions: int | None = None,
) -> DFlashDrafter:
    """Load the weights of a drafter that `read_spec` has accepted; `max_positions` as in `qwen3_5.load`."""
    check_scales(checkpoint)
    read = WeightReader(checkpoint, "", spec.dtype, device)
    positions = min(spec.max_position, max_positions or spec.max_position)
    rotary = rotary_tables(spec.rope, positions, spec.dtype, device)
    layers = [
        _load_layer(read.below(f"layers.{i}."), i, spec, rotary, deterministic)
        for i in range(spec.num_layers)
    ]
    # All layers' keys and values of a context row in one product. They are held twice (here and in each
    # layer's own), a twentieth of the drafter, so that the block's pass needs one product a layer as well.
    context_kv = [f"layers.{i}.self_attn.{name}_proj" for i in range(spec.num_layers) for name in ("k", "v")]
    return DFlashDrafter(
        spec,
        layers,
        load_linear(read, ["fc"], deterministic),
        load_linear(read, context_kv, deterministic),
        read("hidden_norm.weight"),
        read("norm.weight"),
    )


def _load_layer(
    read: WeightReader, index: int, spec: DrafterSpec, rotary: RotaryTables, deterministic: bool
) -> _Layer:
    heads = attention_shape(spec)
    return _Layer(
        attention=load_plain_attention(read.below("self_attn."), heads, rotary, deterministic),
        mlp=load_mlp(read.below("mlp."), deterministic),
        input_norm=read("input_layernorm.weight"),
        post_norm=read("post_attention_layernorm.weight"),
        window=spec.windows[index],
        causal=spec.causal[index],
    )

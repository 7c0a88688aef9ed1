"""The DFlash drafter in training form: published tensor names, many blocks of a row in one pass.

Query rows are N blocks of B slots, [anchor token, mask x (B - 1)]. Keys and values are those of the row's T
context positions (the target's tapped layers, projected and normed once) followed by the block rows' own;
the context's are computed once a layer, whatever the number of blocks. Which of them a block may see says a
mask of `train.draft.masks`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from paceline.layers.rotary import inverse_frequencies
from paceline.models.spec import DrafterSpec
from paceline.train.modules.layers import MLP, Linear, Mask, RMSNorm, Rope, attend, rotate

Kind = tuple[int | None, bool]
"""Window and causality of a layer's blocks: layers of one kind share a mask."""
INIT_STD = 0.02


class DraftAttention(nn.Module):
    """Qwen3 attention (plain norms, full rotation); context and block rows share the key and value
    projections."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = spec.num_heads, spec.kv_heads, spec.head_dim
        hidden = spec.hidden_size
        self.q_proj = Linear(hidden, self.heads * self.dim)
        self.k_proj = Linear(hidden, self.kv_heads * self.dim)
        self.v_proj = Linear(hidden, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, hidden)
        self.q_norm = RMSNorm(self.dim, spec.rms_eps, zero_centred=False)
        self.k_norm = RMSNorm(self.dim, spec.rms_eps, zero_centred=False)

    def forward(self, x: Tensor, context: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """x [B, Q, H] normed block rows, context [B, T, H]; rope [B, T + Q, 1, D / 2] of context and block
        rows."""
        past, (cos, sin) = context.shape[1], rope
        source = torch.cat([context, x], 1)
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim)))
        k = self.k_norm(self.k_proj(source).unflatten(-1, (self.kv_heads, self.dim)))
        v = self.v_proj(source).unflatten(-1, (self.kv_heads, self.dim))
        q, k = rotate(q, cos[:, past:], sin[:, past:]), rotate(k, cos, sin)
        y: Tensor = self.o_proj(attend(q, k, v, mask).flatten(-2))
        return y


class DraftLayer(nn.Module):
    """Pre-norm layer; the context reaches keys and values alone, past the input norm."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=False)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=False)
        self.self_attn = DraftAttention(spec)
        self.mlp = MLP(spec.hidden_size, spec.intermediate_size)

    def forward(self, x: Tensor, context: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """x [B, Q, H] -> the next x."""
        x = x + self.self_attn(self.input_layernorm(x), context, rope, mask)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Drafter(nn.Module):
    """3 + 11 L tensors with random weights; embedding and output matrix are the target's and stay outside."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden = spec.hidden_size
        self.fc = Linear(len(spec.target_layer_ids) * hidden, hidden)
        self.hidden_norm = RMSNorm(hidden, spec.rms_eps, zero_centred=False)
        self.norm = RMSNorm(hidden, spec.rms_eps, zero_centred=False)
        self.layers = nn.ModuleList(DraftLayer(spec) for _ in range(spec.num_layers))
        each = list(zip(spec.windows, spec.causal, strict=True))
        self.kinds: tuple[Kind, ...] = tuple(dict.fromkeys(each))
        self._kind_of = tuple(self.kinds.index(kind) for kind in each)
        self._rope_scale = 1.0 if spec.rope.yarn is None else spec.rope.yarn.table_scale
        self.frequencies: Tensor
        self.register_buffer("frequencies", inverse_frequencies(spec.rope), persistent=False)
        init_draft_weights(self, spec.num_layers)

    def compile_layers(self) -> None:
        """Compile layer by layer: one graph serves any depth."""
        for layer in self.layers:
            layer.compile(dynamic=False)

    def forward(self, features: Tensor, block: Tensor, positions: Tensor, masks: tuple[Mask, ...]) -> Tensor:
        """features [B, T, K * H], block embeddings [B, Q, H], positions [B, T + Q] of context and block
        rows, one mask for each of `kinds` -> [B, Q, H] after the final norm, ready for the output matrix."""
        context = self.hidden_norm(self.fc(features))
        angle = positions.float().unsqueeze(-1) * self.frequencies
        rope = (angle.cos() * self._rope_scale).unsqueeze(2), (angle.sin() * self._rope_scale).unsqueeze(2)
        x = block
        for layer, kind in zip(self.layers, self._kind_of, strict=True):
            x = layer(x, context, rope, masks[kind])
        y: Tensor = self.norm(x)
        return y


@torch.no_grad()
def init_draft_weights(module: nn.Module, depth: int) -> None:
    """Normal with deviation 0.02, projections back into the residual stream scaled down by the depth; norms
    keep theirs."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0, INIT_STD / math.sqrt(2 * depth) if residual else INIT_STD)

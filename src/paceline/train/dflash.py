"""The DFlash drafter for training: published tensors, many random anchors a sequence, masks as served.

Query rows are N blocks of B slots: [embedding of the anchor token, mask embedding x (B - 1)]; slot j
predicts the token at anchor + j (no shift). Keys are the context rows 0..S-1 (the target's tapped features)
followed by the block rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.train.config import DrafterConfig, TargetConfig
from paceline.train.layers import MLP, Linear, RMSNorm, rope_table, rotate
from paceline.train.target import init_weights


def block_mask(anchors: Tensor, context: int, block: int, window: int | None, *, causal: bool) -> Tensor:
    """What a query row may see: bool [B, N * block, context + N * block] for anchors [B, N].

    Context strictly before the anchor, because the feature at the anchor already encodes the token after it;
    the query's own block and no other; with a window, keys at distance < window.
    """
    n = anchors.shape[1]
    slot = torch.arange(n * block, device=anchors.device)
    number, offset = slot // block, slot % block
    start = anchors.repeat_interleave(block, 1).unsqueeze(-1)  # [B, Q, 1]
    position = start + offset.view(1, -1, 1)
    past = torch.arange(context, device=anchors.device)
    see_context = past < start
    see_block = number.unsqueeze(1) == number
    if causal:
        see_block = see_block & (offset <= offset.unsqueeze(1))
    if window is not None:
        see_context = see_context & (position - past < window)
        see_block = see_block & ((offset.unsqueeze(1) - offset).abs() < window)
    return torch.cat([see_context, see_block.expand(anchors.shape[0], -1, -1)], -1)


class DraftAttention(nn.Module):
    """Qwen3 attention (plain norms, full rotation) whose keys are context and block, with the same
    projections."""

    def __init__(self, d: DrafterConfig, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = d.num_attention_heads, d.num_key_value_heads, d.head_dim
        self.q_proj, self.o_proj = (
            Linear(hidden, self.heads * self.dim),
            Linear(self.heads * self.dim, hidden),
        )
        self.k_proj, self.v_proj = (
            Linear(hidden, self.kv_heads * self.dim),
            Linear(hidden, self.kv_heads * self.dim),
        )
        self.q_norm = RMSNorm(self.dim, d.rms_norm_eps, zero_centred=False)
        self.k_norm = RMSNorm(self.dim, d.rms_norm_eps, zero_centred=False)

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x [B, Q, H] normed block rows, context [B, S, H]; rope for the S + Q rows [B, S + Q, 1, D / 2]."""
        b, rows, past = x.shape[0], x.shape[1], context.shape[1]
        source = torch.cat([context, x], 1)
        cos, sin = rope
        q = rotate(
            self.q_norm(self.q_proj(x).view(b, rows, self.heads, self.dim)), cos[:, past:], sin[:, past:]
        )
        k = rotate(self.k_norm(self.k_proj(source).view(b, past + rows, self.kv_heads, self.dim)), cos, sin)
        v = self.v_proj(source).view(b, past + rows, self.kv_heads, self.dim)
        rep = self.heads // self.kv_heads
        k, v = k.repeat_interleave(rep, 2), v.repeat_interleave(rep, 2)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask.unsqueeze(1)
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class DraftLayer(nn.Module):
    """Pre-norm layer; the context goes to keys and values only, past the input norm."""

    def __init__(self, d: DrafterConfig, hidden: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden, d.rms_norm_eps, zero_centred=False)
        self.post_attention_layernorm = RMSNorm(hidden, d.rms_norm_eps, zero_centred=False)
        self.self_attn, self.mlp = DraftAttention(d, hidden), MLP(hidden, d.intermediate_size)

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rope, mask)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Drafter(nn.Module):
    """3 + 11 L tensors; embedding and output table are the target's."""

    def __init__(self, d: DrafterConfig, t: TargetConfig) -> None:
        super().__init__()
        self.config = d
        self.fc = Linear(len(d.target_layer_ids) * t.hidden_size, t.hidden_size)
        self.hidden_norm = RMSNorm(t.hidden_size, d.rms_norm_eps, zero_centred=False)
        self.norm = RMSNorm(t.hidden_size, d.rms_norm_eps, zero_centred=False)
        self.layers = nn.ModuleList(DraftLayer(d, t.hidden_size) for _ in range(d.num_hidden_layers))
        init_weights(self, d.num_hidden_layers)

    def forward(self, features: Tensor, anchors: Tensor, block: Tensor) -> Tensor:
        """features [B, S, K * H], anchors [B, N], block embeddings [B, N, B', H] -> normed hidden [B, N, B',
        H]."""
        d, size = self.config, block.shape[2]
        context = self.hidden_norm(self.fc(features))
        past = torch.arange(context.shape[1], device=anchors.device).expand(anchors.shape[0], -1)
        slots = (anchors.unsqueeze(-1) + torch.arange(size, device=anchors.device)).flatten(1)
        cos, sin = rope_table(torch.cat([past, slots], 1), d.head_dim, d.rope_theta)
        rope = (cos.unsqueeze(2), sin.unsqueeze(2))
        masks = {}
        for kind in set(d.layer_types):
            sliding = kind == "sliding_attention"
            window = d.sliding_window if sliding else None
            masks[kind] = block_mask(anchors, context.shape[1], size, window, causal=sliding)
        x = block.flatten(1, 2)
        for layer, kind in zip(self.layers, d.layer_types, strict=True):
            x = layer(x, context, rope, masks[kind])
        return self.norm(x).view_as(block)


def block_inputs(ids: Tensor, anchors: Tensor, embed: Tensor, mask_id: int, size: int) -> Tensor:
    """[B, N, size, H]: slot 0 the anchor token's row of ``embed``, the others the mask row."""
    tokens = torch.full((*anchors.shape, size), mask_id, dtype=torch.long, device=ids.device)
    tokens[..., 0] = ids.gather(1, anchors)
    return F.embedding(tokens, embed)


def block_labels(ids: Tensor, anchors: Tensor, size: int) -> Tensor:
    """[B, N, size - 1]: label of slot j is the token at anchor + j; -100 past the end."""
    at = anchors.unsqueeze(-1) + torch.arange(1, size, device=ids.device)
    labels = ids.gather(1, at.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(at)
    return labels.masked_fill(at >= ids.shape[1], -100)


def random_anchors(prefix: Tensor, length: int, count: int, generator: torch.Generator) -> Tensor:
    """Sorted positions [B, count] in prefix - 1 .. length - 2: at least one token after each was
    generated."""
    draw = torch.rand(prefix.shape[0], count, device=prefix.device, generator=generator)
    low = prefix.unsqueeze(1) - 1
    return (low + (draw * (length - 1 - low)).long()).sort(1).values


def position_weights(right: Tensor, valid: Tensor, d: DrafterConfig) -> Tensor:
    """Weight of each slot [..., B - 1], from the probability ``right`` of its label and which labels exist.

    decay: exp(-(k - 1) / gamma), the published recipe. dpace: the expected number of accepted tokens that
    hang on the slot, sum over m >= j of prod over i <= m of (1 - alpha) q_i + alpha.
    """
    if d.weighting == "decay":
        k = torch.arange(right.shape[-1], device=right.device)
        return torch.exp(-k / d.decay_gamma) * valid
    soft = (1 - d.dpace_alpha) * right.detach() + d.dpace_alpha
    reach = soft.cumprod(-1) * valid
    return reach.flip(-1).cumsum(-1).flip(-1) * valid


def dflash_loss(
    drafter: Drafter, features: Tensor, anchors: Tensor, block: Tensor, labels: Tensor, table: Tensor
) -> Tensor:
    """Weighted mean cross-entropy of slots 1..B-1."""
    hidden = drafter(features, anchors, block)[:, :, 1:]
    logits = F.linear(hidden, table.to(hidden.dtype)).float()
    valid = (labels >= 0).float()
    loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(valid)
    weights = position_weights(torch.exp(-loss.detach()), valid, drafter.config)
    return (loss * weights).sum() / weights.sum().clamp(min=1e-6)

"""The qwen3_5 target for training: forward over whole sequences, taps, cached steps for generation."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.train.config import TargetConfig
from paceline.train.layers import MLP, DeltaCache, GatedAttention, GatedDeltaNet, KVCache, RMSNorm, rope_table


class LinearBlock(nn.Module):
    """Pre-norm block with a delta layer."""

    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.linear_attn, self.mlp = GatedDeltaNet(c), MLP(c.hidden_size, c.intermediate_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: DeltaCache | None = None) -> Tensor:
        x = x + self.linear_attn(self.input_layernorm(x), cache)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class FullBlock(nn.Module):
    """Pre-norm block with gated attention."""

    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.self_attn, self.mlp = GatedAttention(c), MLP(c.hidden_size, c.intermediate_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


def head_loss(hidden: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of hidden [..., H] against the tied table [V, H]; label -100 is ignored."""
    logits = F.linear(hidden, table.to(hidden.dtype)).float()
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


class Target(nn.Module):
    """Tied-embedding qwen3_5 text model. ``compute`` is the dtype of activations and matrix products."""

    def __init__(self, c: TargetConfig, compute: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.compute = c, compute
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(
            FullBlock(c) if kind == "full_attention" else LinearBlock(c) for kind in c.layer_types
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self._run: list[Any] = list(self.layers)
        init_weights(self, c.num_hidden_layers)

    def compile_blocks(self) -> None:
        """Compile block by block: two graphs serve any depth."""
        self._run = [torch.compile(layer, fullgraph=True, dynamic=False) for layer in self.layers]

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the table in the compute dtype."""
        return F.embedding(ids, self.embed_tokens.weight).to(self.compute)

    def rope(self, length: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """cos, sin [length, 1, r / 2] for positions start..start + length - 1."""
        positions = torch.arange(start, start + length, device=self.embed_tokens.weight.device)
        cos, sin = rope_table(positions, self.config.rotary_dim, self.config.rope_theta)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    def forward(self, ids: Tensor, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """ids [B, T] -> post-norm hidden [B, T, H] and the residual stream after each tap, [B, T, len(taps)
        * H]."""
        x = self.embed(ids)
        cos, sin = self.rope(ids.shape[1])
        seen = {}
        for i, layer in enumerate(self._run):
            x = layer(x, cos, sin)
            if i in taps:
                seen[i] = x
        features = torch.cat([seen[i] for i in taps], -1) if taps else None
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits by the tied table."""
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()

    def make_caches(self, batch: int, rows: int) -> list[DeltaCache | KVCache]:
        """Empty caches for `step`."""
        c, device = self.config, self.embed_tokens.weight.device
        return [
            KVCache(batch, rows, c.num_key_value_heads, c.head_dim, self.compute, device)
            if kind == "full_attention"
            else DeltaCache()
            for kind in c.layer_types
        ]

    @torch.no_grad()
    def step(self, ids: Tensor, start: int, caches: list[DeltaCache | KVCache]) -> Tensor:
        """Forward ids [B, T] at positions start.. with caches (T = 1, or T > 1 from empty ones); last hidden
        [B, H]."""
        x = self.embed(ids)
        cos, sin = self.rope(ids.shape[1], start)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cos, sin, cache)
        hidden: Tensor = self.norm(x[:, -1])
        return hidden


@torch.no_grad()
def init_weights(module: nn.Module, depth: int) -> None:
    """Normal 0.02, residual projections scaled by depth; decay spread over 10..1000 tokens, because the
    class default of the reference implementation forgets within one token."""
    residual = 0.02 / math.sqrt(2 * depth)
    for name, p in module.named_parameters():
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            p.normal_(0, residual)
        elif name.endswith("A_log"):
            p.copy_(torch.empty_like(p).uniform_(1, 16).log())
        elif name.endswith("dt_bias"):
            dt = torch.exp(torch.empty_like(p).uniform_(math.log(1e-3), math.log(1e-1)))
            p.copy_(dt + torch.log(-torch.expm1(-dt)))
        elif name.endswith("conv1d.weight"):
            p.uniform_(-0.5, 0.5)
        elif p.dim() >= 2:
            p.normal_(0, 0.02)

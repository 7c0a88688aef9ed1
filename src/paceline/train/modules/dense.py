"""Dense decoders (llama, qwen2, qwen3) in training form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.models.dense_config import DenseSpec
from paceline.train.modules.attend_slots import attend_slots
from paceline.train.modules.base import RolloutState
from paceline.train.modules.decoder import Decoder
from paceline.train.modules.layers import (
    MLP,
    Linear,
    Mask,
    RMSNorm,
    Rope,
    SlotKV,
    attend,
    document_mask,
    rotate,
)


class DenseAttention(nn.Module):
    """Grouped-query attention with full rotation."""

    def __init__(self, c: DenseSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_heads, c.kv_heads, c.head_dim
        inner, outer = self.heads * self.dim, self.kv_heads * self.dim
        self.q_proj = Linear(c.hidden_size, inner, bias="q_proj" in c.biased)
        self.k_proj = Linear(c.hidden_size, outer, bias="k_proj" in c.biased)
        self.v_proj = Linear(c.hidden_size, outer, bias="v_proj" in c.biased)
        self.o_proj = Linear(inner, c.hidden_size, bias="o_proj" in c.biased)
        if c.head_norms:
            self.q_norm = RMSNorm(self.dim, c.rms_eps, zero_centred=False)
            self.k_norm = RMSNorm(self.dim, c.rms_eps, zero_centred=False)
        self.head_norms = c.head_norms

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """x [..., H] -> q [..., Hq, D], k and v [..., Hkv, D]; rope [..., 1, D / 2] for the same rows."""
        q = self.q_proj(x).unflatten(-1, (self.heads, self.dim))
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        if self.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, *rope), rotate(k, *rope), v


class DenseBlock(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, c: DenseSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_eps, zero_centred=False)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_eps, zero_centred=False)
        self.self_attn, self.mlp = DenseAttention(c), MLP(c.hidden_size, c.intermediate_size)

    def forward(self, x: Tensor, rope: Rope, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, H] -> the next x, and this layer's keys and values [B, T, Hkv, D]."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), rope)
        return self._finish(x, attend(q, k, v, mask).flatten(-2)), k, v

    def decode(self, x: Tensor, rope: Rope, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """x [S, H], one row a slot; keys and values as `attend_slots` takes them."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), rope)
        return self._finish(x, attend_slots(q, k, v, positions, keys, values).flatten(-2))

    def _finish(self, x: Tensor, heads: Tensor) -> Tensor:
        x = x + self.self_attn.o_proj(heads)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class DenseState(RolloutState):
    """Keys and values of every layer."""

    def __init__(self, layers: list[SlotKV]) -> None:
        self.layers = layers


class Dense(Decoder):
    """llama, qwen2 or qwen3."""

    def __init__(self, c: DenseSpec, compute: torch.dtype = torch.float32) -> None:
        super().__init__(c, compute, (DenseBlock(c) for _ in range(c.num_layers)), zero_centred=False)
        self.spec = c

    def forward(
        self, ids: Tensor, taps: tuple[int, ...] = (), documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        x, mask = self.embed(ids), document_mask(documents)
        rope = self._rope(torch.arange(ids.shape[1], device=ids.device))
        seen: dict[int, Tensor] = {}
        for i, layer in enumerate(self._run):
            x, _, _ = layer(x, rope, mask)
            if i in taps:
                seen[i] = x
        return self.norm(x), torch.cat([seen[i] for i in taps], -1) if taps else None

    def rollout_state(self, slots: int, length: int) -> DenseState:
        c, like = self.spec, self.embed_tokens.weight.new_empty(0, dtype=self.compute)
        return DenseState([SlotKV(slots, c.kv_heads, length, c.head_dim, like) for _ in self.layers])

    def prefill(self, ids: Tensor, lengths: Tensor, slots: Tensor, state: RolloutState) -> None:
        assert isinstance(state, DenseState)
        x = self.embed(ids)
        rope = self._rope(torch.arange(ids.shape[1], device=ids.device))
        for layer, kv in zip(self.layers, state.layers, strict=True):
            x, k, v = layer(x, rope, None)
            kv.write_prompt(k, v, slots)

    def decode(self, ids: Tensor, positions: Tensor, state: RolloutState) -> Tensor:
        assert isinstance(state, DenseState)
        x, rope = self.embed(ids), self._rope(positions)
        for step, kv in zip(self._decode, state.layers, strict=True):
            x = step(x, rope, positions, kv.k, kv.v)
        hidden: Tensor = self.norm(x)
        return hidden

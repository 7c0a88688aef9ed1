"""The qwen3_5 text tower in training form: gated attention and gated delta layers over packed rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.spec import FULL_ATTENTION, TargetSpec
from paceline.train.modules.attend_slots import attend_slots
from paceline.train.modules.base import RolloutState
from paceline.train.modules.conv import causal_conv_silu
from paceline.train.modules.decoder import Decoder
from paceline.train.modules.delta import recurrent_gated_delta
from paceline.train.modules.delta_fla import chunk_gated_delta
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

RESET = -40.0
"""Log decay at the first row of a packed document: what came before is multiplied by 4e-18."""
Starts = Tensor | None


class GatedAttention(nn.Module):
    """Full attention: per head [query | gate] rows in q_proj, QK-norm, partial rotation, sigmoid gate."""

    def __init__(self, c: TargetSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_heads, c.kv_heads, c.head_dim
        self.q_proj = Linear(c.hidden_size, 2 * self.heads * self.dim)
        self.k_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.v_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, c.hidden_size)
        self.q_norm = RMSNorm(self.dim, c.rms_eps, zero_centred=True)
        self.k_norm = RMSNorm(self.dim, c.rms_eps, zero_centred=True)

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [..., H] -> q, gate [..., Hq, D] and k, v [..., Hkv, D]; rope [..., 1, r / 2]."""
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2 * self.dim)).chunk(2, -1)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim)))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        return rotate(self.q_norm(q), *rope), gate, rotate(k, *rope), v

    def finish(self, heads: Tensor, gate: Tensor) -> Tensor:
        """Gate and project the heads' outputs [..., Hq, D]."""
        out: Tensor = self.o_proj((heads * gate.sigmoid()).flatten(-2))
        return out


class GatedNorm(nn.Module):
    """Norm of the delta rule's output: plain w, norm first, then x SiLU(z)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        y = x.float()
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        return ((y * self.weight.to(x.dtype)).float() * F.silu(z.float())).to(x.dtype)


class ConvWeight(nn.Module):
    """Holder, so that the weight is named ``conv1d.weight`` [C, 1, width]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))


class GatedDeltaNet(nn.Module):
    """Linear attention: causal conv, gated delta rule with grouped value heads, gated norm."""

    def __init__(self, c: TargetSpec) -> None:
        super().__init__()
        self.hk, self.hv, self.dk, self.dv = c.num_key_heads, c.num_value_heads, c.key_dim, c.value_dim
        self.width, self.k_size, self.v_size = c.conv_width, self.hk * self.dk, self.hv * self.dv
        self.in_proj_qkv = Linear(c.hidden_size, c.conv_dim)
        self.in_proj_z = Linear(c.hidden_size, self.v_size)
        self.in_proj_b, self.in_proj_a = Linear(c.hidden_size, self.hv), Linear(c.hidden_size, self.hv)
        self.conv1d = ConvWeight(c.conv_dim, self.width)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(self.hv)), nn.Parameter(torch.empty(self.hv))
        self.norm = GatedNorm(self.dv, c.rms_eps)
        self.out_proj = Linear(self.v_size, c.hidden_size)

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Convolved rows [..., C] -> l2-normalised fp32 q (scaled), k [..., Hk, dk], and v [..., Hv, dv]."""
        q, k, v = qkv.split([self.k_size, self.k_size, self.v_size], -1)
        q, k = (x.unflatten(-1, (self.hk, self.dk)).float() for x in (q, k))
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * self.dk**-0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        return q, k, v.unflatten(-1, (self.hv, self.dv))

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay (fp32) and beta, each [..., Hv]."""
        raw = self.in_proj_a(x).float() + self.dt_bias.float()
        return -self.A_log.float().exp() * F.softplus(raw), self.in_proj_b(x).sigmoid()

    def _finish(self, out: Tensor, x: Tensor) -> Tensor:
        z = self.in_proj_z(x).unflatten(-1, (self.hv, self.dv))
        y: Tensor = self.out_proj(self.norm(out, z).flatten(-2))
        return y

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        q, k, v = self._heads(causal_conv_silu(self.in_proj_qkv(x), self.conv1d.weight[:, 0], documents))
        g, beta = self._gates(x)
        if documents is not None:
            starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
            g = g.masked_fill(starts.unsqueeze(-1), RESET)
        out, _ = chunk_gated_delta(q, k, v, g, beta)
        return self._finish(out, x)

    def read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [N, T, H] of which the first `lengths` [N] count -> output, the last width - 1 conv inputs
        [N, width - 1, C] and the state [N, Hv, dk, dv] after them."""
        u = self.in_proj_qkv(x)
        q, k, v = self._heads(causal_conv_silu(u, self.conv1d.weight[:, 0]))
        g, beta = self._gates(x)
        past = (torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)).unsqueeze(-1)
        # A row without decay and without a write leaves the state as it is.
        out, state = chunk_gated_delta(q, k, v, g.masked_fill(past, 0), beta.masked_fill(past, 0))
        keep = self.width - 1
        rows = lengths.unsqueeze(1) + torch.arange(keep, device=x.device)  # counted in the padded inputs
        history = F.pad(u, (0, 0, keep, 0)).gather(1, rows.unsqueeze(-1).expand(-1, -1, u.shape[2]))
        return self._finish(out, x), history, state

    def decode(self, x: Tensor, history: Tensor, state: Tensor) -> Tensor:
        """One row a slot: x [S, H]; history [S, width - 1, C] and state [S, Hv, dk, dv] are updated."""
        inputs = torch.cat([history, self.in_proj_qkv(x).unsqueeze(1)], 1)
        history.copy_(inputs[:, 1:])
        weight = self.conv1d.weight[:, 0].to(x.dtype).float()
        mixed = F.silu((inputs.float() * weight.T).sum(1)).to(x.dtype)
        q, k, v = (t.unsqueeze(1) for t in self._heads(mixed))
        g, beta = (t.unsqueeze(1) for t in self._gates(x))
        out, _ = recurrent_gated_delta(q, k, v, g, beta, state)
        return self._finish(out.squeeze(1), x)


class HybridBlock(nn.Module):
    """Pre-norm decoder layer with either mixer, under the published name of the one it has."""

    def __init__(self, c: TargetSpec, kind: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_eps, zero_centred=True)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_eps, zero_centred=True)
        self.full = kind == FULL_ATTENTION
        if self.full:
            self.self_attn = GatedAttention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)

    def forward(self, x: Tensor, rope: Rope, mask: Mask, documents: Tensor | None) -> Tensor:
        """x [B, T, H] -> the next x."""
        normed = self.input_layernorm(x)
        if self.full:
            q, gate, k, v = self.self_attn.project(normed, rope)
            return self.after(x, self.self_attn.finish(attend(q, k, v, mask), gate))
        return self.after(x, self.linear_attn(normed, documents))

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the layer once its mixer has answered."""
        x = x + mixed
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y

    def read(self, x: Tensor, rope: Rope, lengths: Tensor, slots: Tensor, kept: Any) -> Tensor:
        """`forward` over prompts padded at the right, leaving what decoding needs in `kept` at `slots`."""
        normed = self.input_layernorm(x)
        if self.full:
            q, gate, k, v = self.self_attn.project(normed, rope)
            kept.write_prompt(k, v, slots)
            return self.after(x, self.self_attn.finish(attend(q, k, v, None), gate))
        mixed, kept.history[slots], kept.state[slots] = self.linear_attn.read(normed, lengths)
        return self.after(x, mixed)

    def decode(self, x: Tensor, rope: Rope, positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """x [S, H]; first and second are keys and values, or conv history and state."""
        normed = self.input_layernorm(x)
        if self.full:
            q, gate, k, v = self.self_attn.project(normed, rope)
            heads = attend_slots(q, k, v, positions, first, second)
            return self.after(x, self.self_attn.finish(heads, gate))
        return self.after(x, self.linear_attn.decode(normed, first, second))


class SlotDelta:
    """Conv inputs [S, width - 1, C] and fp32 states [S, Hv, dk, dv] of one delta layer in a rollout."""

    def __init__(self, slots: int, c: TargetSpec, like: Tensor) -> None:
        self.history = like.new_zeros(slots, c.conv_width - 1, c.conv_dim)
        shape = (slots, c.num_value_heads, c.key_dim, c.value_dim)
        self.state = like.new_zeros(shape, dtype=torch.float32)


class HybridState(RolloutState):
    """What each layer keeps, in layer order."""

    def __init__(self, layers: list[SlotKV | SlotDelta]) -> None:
        self.layers = layers


class Hybrid(Decoder):
    """qwen3_5: see `TrainTarget`."""

    def __init__(self, c: TargetSpec, compute: torch.dtype = torch.float32) -> None:
        super().__init__(c, compute, (HybridBlock(c, kind) for kind in c.layer_types), zero_centred=True)
        self.spec = c

    def forward(
        self, ids: Tensor, taps: tuple[int, ...] = (), documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        x, mask = self.embed(ids), document_mask(documents)
        rope = self._rope(torch.arange(ids.shape[1], device=ids.device))
        seen: dict[int, Tensor] = {}
        for i, layer in enumerate(self._run):
            x = layer(x, rope, mask, documents)
            if i in taps:
                seen[i] = x
        return self.norm(x), torch.cat([seen[i] for i in taps], -1) if taps else None

    def rollout_state(self, slots: int, length: int) -> HybridState:
        c, like = self.spec, self.embed_tokens.weight.new_empty(0, dtype=self.compute)
        layers: list[SlotKV | SlotDelta] = [
            SlotKV(slots, c.kv_heads, length, c.head_dim, like)
            if kind == FULL_ATTENTION
            else SlotDelta(slots, c, like)
            for kind in c.layer_types
        ]
        return HybridState(layers)

    def prefill(self, ids: Tensor, lengths: Tensor, slots: Tensor, state: RolloutState) -> None:
        assert isinstance(state, HybridState)
        x = self.embed(ids)
        rope = self._rope(torch.arange(ids.shape[1], device=ids.device))
        for layer, kept in zip(self.layers, state.layers, strict=True):
            assert isinstance(layer, HybridBlock)
            x = layer.read(x, rope, lengths, slots, kept)

    def decode(self, ids: Tensor, positions: Tensor, state: RolloutState) -> Tensor:
        assert isinstance(state, HybridState)
        x, rope = self.embed(ids), self._rope(positions)
        for step, kept in zip(self._decode, state.layers, strict=True):
            pair = (kept.k, kept.v) if isinstance(kept, SlotKV) else (kept.history, kept.state)
            x = step(x, rope, positions, *pair)
        hidden: Tensor = self.norm(x)
        return hidden

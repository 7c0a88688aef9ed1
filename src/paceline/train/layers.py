"""Layers that the target, the MTP head and the drafter share in training. Weights are fp32 masters, cast to
the activations' dtype at use; tensor names equal those of the published checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.train.config import TargetConfig
from paceline.train.delta import chunk_gated_delta, recurrent_gated_delta


class Linear(nn.Module):
    """y = x W^T, weight [out, in], no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """RMS norm over the last dimension in fp32; ``zero_centred`` scales by 1 + w (qwen3_5), else by w
    (drafter)."""

    def __init__(self, size: int, eps: float, *, zero_centred: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if zero_centred else torch.ones(size))
        self.eps, self.shift = eps, 1.0 if zero_centred else 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * (self.weight.float() + self.shift)).to(x.dtype)


class GatedNorm(nn.Module):
    """Norm of the delta rule's output: plain w, norm first, then x SiLU(z)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        y = x.float()
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        return ((y * self.weight.to(x.dtype)).float() * F.silu(z.float())).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, inner), Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rope_table(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos, sin [..., dim / 2] fp32 for positions [...]."""
    inv = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angle = positions.float().unsqueeze(-1) * inv
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2 * cos.shape[-1] dimensions of x [..., D] (NeoX pairing i with i + half)."""
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class KVCache:
    """Keys and values [B, T, Hkv, D] of one layer for generation; ``length`` rows are valid."""

    def __init__(
        self, batch: int, rows: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.k = torch.zeros(batch, rows, heads, dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new rows; returns all valid rows."""
        end = self.length + k.shape[1]
        self.k[:, self.length : end], self.v[:, self.length : end] = k, v
        self.length = end
        return self.k[:, :end], self.v[:, :end]


class GatedAttention(nn.Module):
    """qwen3_5 full attention: per head [query | gate] rows in q_proj, QK-norm, partial rotation, sigmoid
    gate."""

    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = Linear(c.hidden_size, 2 * self.heads * self.dim)
        self.k_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.v_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, c.hidden_size)
        self.q_norm = RMSNorm(self.dim, c.rms_norm_eps, zero_centred=True)
        self.k_norm = RMSNorm(self.dim, c.rms_norm_eps, zero_centred=True)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, gate [B, T, H, D] and k, v [B, T, Hkv, D]; cos, sin [T, 1, r / 2] or broadcastable."""
        b, t, _ = x.shape
        q, gate = self.q_proj(x).view(b, t, self.heads, 2 * self.dim).chunk(2, -1)
        k = self.k_norm(self.k_proj(x).view(b, t, self.kv_heads, self.dim))
        v = self.v_proj(x).view(b, t, self.kv_heads, self.dim)
        return rotate(self.q_norm(q), cos, sin), gate, rotate(k, cos, sin), v

    def finish(self, out: Tensor, gate: Tensor) -> Tensor:
        """Gate and project the heads' outputs [B, T, H, D]."""
        return self.o_proj((out * gate.sigmoid()).flatten(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None = None) -> Tensor:
        q, gate, k, v = self.project(x, cos, sin)
        causal = q.shape[1] > 1  # one row sees all that is cached; several rows come only to an empty cache
        if cache is not None:
            assert q.shape[1] == 1 or cache.length == 0
            k, v = cache.append(k, v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return self.finish(out.transpose(1, 2), gate)


class DeltaCache:
    """What a delta layer keeps for generation: the last width - 1 conv inputs and the fp32 state."""

    def __init__(self) -> None:
        self.conv: Tensor | None = None
        self.state: Tensor | None = None


class ConvWeight(nn.Module):
    """Holder, so that the weight is named ``conv1d.weight`` [C, 1, width]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))


class GatedDeltaNet(nn.Module):
    """qwen3_5 linear attention: causal conv, gated delta rule with grouped value heads, gated norm."""

    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.hk, self.hv = c.linear_num_key_heads, c.linear_num_value_heads
        self.dk, self.dv, self.width = (
            c.linear_key_head_dim,
            c.linear_value_head_dim,
            c.linear_conv_kernel_dim,
        )
        self.k_size, self.v_size = self.hk * self.dk, self.hv * self.dv
        channels = 2 * self.k_size + self.v_size
        self.in_proj_qkv, self.in_proj_z = Linear(c.hidden_size, channels), Linear(c.hidden_size, self.v_size)
        self.in_proj_b, self.in_proj_a = Linear(c.hidden_size, self.hv), Linear(c.hidden_size, self.hv)
        self.conv1d = ConvWeight(channels, self.width)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(self.hv)), nn.Parameter(torch.empty(self.hv))
        self.norm = GatedNorm(self.dv, c.rms_norm_eps)
        self.out_proj = Linear(self.v_size, c.hidden_size)

    def _conv(self, u: Tensor, cache: DeltaCache | None) -> Tensor:
        """SiLU of the causal depthwise convolution over u [B, T, C]."""
        keep = self.width - 1
        past = None if cache is None else cache.conv
        padded = F.pad(u, (0, 0, keep, 0)) if past is None else torch.cat([past, u], 1)
        if cache is not None:
            cache.conv = padded[:, -keep:].clone()
        w = self.conv1d.weight[:, 0].to(u.dtype).float()
        rows = u.shape[1]
        y = torch.zeros_like(u, dtype=torch.float32)
        for i in range(self.width):
            y = y + padded[:, i : i + rows].float() * w[:, i]
        return F.silu(y).to(u.dtype)

    def _heads(self, x: Tensor, scale: float) -> Tensor:
        """l2-normalised key heads [B, T, Hk, dk] fp32."""
        x = x.unflatten(-1, (self.hk, self.dk)).float()
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) * scale

    def forward(self, x: Tensor, cache: DeltaCache | None = None) -> Tensor:
        q, k, v = self._conv(self.in_proj_qkv(x), cache).split([self.k_size, self.k_size, self.v_size], -1)
        q, k = self._heads(q, self.dk**-0.5), self._heads(k, 1.0)
        v = v.unflatten(-1, (self.hv, self.dv))
        beta = self.in_proj_b(x).sigmoid()
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        if cache is not None and cache.state is not None and x.shape[1] == 1:
            out, cache.state = recurrent_gated_delta(q, k, v, g, beta, cache.state)
        else:
            out, state = chunk_gated_delta(q, k, v, g, beta, None if cache is None else cache.state)
            if cache is not None:
                cache.state = state.contiguous()
        z = self.in_proj_z(x).unflatten(-1, (self.hv, self.dv))
        return self.out_proj(self.norm(out, z).flatten(2))

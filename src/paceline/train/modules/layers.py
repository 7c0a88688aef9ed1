"""Layers that targets, heads and drafters share in training. Weights are fp32 masters, cast to the
activations' dtype at use; tensor names equal those of published checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from paceline.layers.rotary import RopeSpec, inverse_frequencies

Rope = tuple[Tensor, Tensor]
Mask = BlockMask | Tensor | None
_FLEX_BLOCK = 128
_compiled_flex = torch.compile(flex_attention, dynamic=False)


class Linear(nn.Module):
    """y = x W^T (+ b), weight [out, in]."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.reading: Callable[[Tensor], Tensor] | None = None
        """What products see of the weight, if not the weight itself; see `four_bits`."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        weight = self.weight if self.reading is None else self.reading(self.weight)
        return F.linear(x, weight.to(x.dtype), bias)


class RMSNorm(nn.Module):
    """RMS norm over the last dimension in fp32; ``zero_centred`` scales by 1 + w (qwen3_5), else by w."""

    def __init__(self, size: int, eps: float, *, zero_centred: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if zero_centred else torch.ones(size))
        self.eps, self.shift = eps, 1.0 if zero_centred else 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * (self.weight.float() + self.shift)).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, inner), Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@lru_cache
def _frequencies(spec: RopeSpec, device: torch.device) -> Tensor:
    """On the device once: a step that is captured in a graph may not copy from the host."""
    return inverse_frequencies(spec).to(device)


def rope_rows(spec: RopeSpec, positions: Tensor) -> Rope:
    """cos, sin [..., rotary_dim / 2] fp32 for positions [...], by the rule of the engine's tables."""
    angle = positions.float().unsqueeze(-1) * _frequencies(spec, positions.device)
    scale = 1.0 if spec.yarn is None else spec.yarn.table_scale
    return angle.cos() * scale, angle.sin() * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2 * cos.shape[-1] dimensions of x [..., D] (NeoX pairing i with i + half)."""
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def document_mask(documents: Tensor | None) -> Mask:
    """Who sees whom in packed rows: causal, inside a document. None (plain causal) for unpacked rows.

    On a GPU a FlexAttention block mask, whose empty blocks cost nothing; else the dense [B, 1, T, T], which
    is also the reference of the other.
    """
    if documents is None:
        return None
    if documents.is_cuda:
        return flex_document_mask(documents)
    rows = documents.shape[1]
    causal = torch.ones(rows, rows, dtype=torch.bool, device=documents.device).tril()
    return ((documents.unsqueeze(2) == documents.unsqueeze(1)) & causal).unsqueeze(1)


def flex_document_mask(documents: Tensor, block: int = _FLEX_BLOCK) -> BlockMask:
    """The block form of `document_mask`, for documents [B, T] in one piece each.

    Built from the first and last document of each block, because the generic builder looks at every pair.
    """
    length = documents.shape[1]
    # Numbered upwards along the row, whatever the caller's numbers are (padding at the end is often 0).
    documents = F.pad((documents[:, 1:] != documents[:, :-1]).long().cumsum(1), (1, 0))
    count = -(-length // block)
    padded = F.pad(documents, (0, count * block - length), value=torch.iinfo(documents.dtype).max)
    blocks = padded.unflatten(1, (count, block))
    first, last = blocks[..., 0], blocks[..., -1]
    lower = torch.ones(count, count, dtype=torch.bool, device=documents.device).tril()
    touched = lower & (last.unsqueeze(1) >= first.unsqueeze(2))  # key block reaches the query block's first
    whole = lower.tril(-1) & (first.unsqueeze(1) == last.unsqueeze(2))
    partial = touched & ~whole

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    def ordered(mask: Tensor) -> tuple[Tensor, Tensor]:
        order = (~mask).to(torch.int8).argsort(dim=-1, stable=True).to(torch.int32)
        return mask.sum(-1, dtype=torch.int32).unsqueeze(1), order.unsqueeze(1)

    return BlockMask.from_kv_blocks(
        *ordered(partial), *ordered(whole), BLOCK_SIZE=block, mask_mod=visible, seq_lengths=(length, length)
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Heads [B, T, Hq, D] over keys and values [B, T, Hkv, D] -> [B, T, Hq, D]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if isinstance(mask, BlockMask):
        # Compiled even where the caller is not: its eager form would hold every score.
        flex = _compiled_flex if q.is_cuda and not torch.compiler.is_compiling() else flex_attention
        out: Any = flex(q, k, v, block_mask=mask, enable_gqa=True)
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
    assert isinstance(out, Tensor)
    return out.transpose(1, 2)


class SlotKV:
    """Keys and values [S, Hkv, L, D] of one attention layer in a rollout."""

    def __init__(self, slots: int, heads: int, length: int, dim: int, like: Tensor) -> None:
        self.k = like.new_zeros(slots, heads, length, dim)
        self.v = torch.zeros_like(self.k)

    def write_prompt(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store the rows of prompts [N, T, Hkv, D]; what lies past a prompt's end is overwritten later."""
        self.k[slots, :, : k.shape[1]] = k.transpose(1, 2)
        self.v[slots, :, : v.shape[1]] = v.transpose(1, 2)

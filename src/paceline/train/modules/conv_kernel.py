"""Triton kernels for SiLU of a causal depthwise convolution of width 4, forward and backward.

A program walks down (forward) or up (backward) some rows of a few channels with the window in registers, so
that every input is read once and every sigmoid taken once. The reference is
`paceline.train.modules.conv.plain_conv_silu`; compiled, it takes four times as long (H200, 65,536 rows of
1,728 channels in bf16: 0.6 and 1.7 ms, here 0.2 and 0.4).
"""

# Kernels are no Python functions: their arguments have Triton's types, not Python's.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 4
_ROWS, _CHANNELS, _WARPS = 64, 256, 2


@triton.jit
def _row(base, t, channel, inside, size, length):
    """Row t of [T, C] in fp32, zero outside the sequence."""
    there = inside & (t >= 0) & (t < length)
    return tl.load(base + tl.cast(t, tl.int64) * size + channel, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _window(base, t, channel, inside, size, length):
    """Rows t - 3 to t."""
    first = _row(base, t - 3, channel, inside, size, length)
    second = _row(base, t - 2, channel, inside, size, length)
    third = _row(base, t - 1, channel, inside, size, length)
    return first, second, third, _row(base, t, channel, inside, size, length)


@triton.jit
def _taps(weight, channel, inside, dtype: tl.constexpr):
    """The four taps of [C, 4], rounded like the activations, in fp32."""
    at = weight + channel * 4
    w0 = tl.load(at, mask=inside, other=0.0).to(dtype).to(tl.float32)
    w1 = tl.load(at + 1, mask=inside, other=0.0).to(dtype).to(tl.float32)
    w2 = tl.load(at + 2, mask=inside, other=0.0).to(dtype).to(tl.float32)
    w3 = tl.load(at + 3, mask=inside, other=0.0).to(dtype).to(tl.float32)
    return w0, w1, w2, w3


@triton.jit
def _document(documents, t, length, PACKED: tl.constexpr):
    """Document of row t, -1 outside the sequence; always the same without packing."""
    if PACKED:
        number = tl.load(documents + t, mask=(t >= 0) & (t < length), other=-1).to(tl.int32)
    else:
        number = tl.full([], 0, tl.int32)
    return number


@triton.jit
def _forward_kernel(
    u, weight, documents, out, length, size,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    batch = tl.cast(tl.program_id(2), tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < size
    start = tl.program_id(0) * ROWS
    u += batch * length * size
    out += batch * length * size
    documents += batch * length
    w0, w1, w2, w3 = _taps(weight, channel, inside, u.dtype.element_ty)
    u0, u1, u2, u3 = _window(u, start, channel, inside, size, length)
    d0 = _document(documents, start - 3, length, PACKED)
    d1 = _document(documents, start - 2, length, PACKED)
    d2 = _document(documents, start - 1, length, PACKED)
    for t in range(start, tl.minimum(start + ROWS, length)):
        ahead = _row(u, t + 1, channel, inside, size, length)  # asked for before it is needed
        d3 = _document(documents, t, length, PACKED)
        y = w3 * u3 + tl.where(d2 == d3, w2 * u2, 0.0)
        y += tl.where(d1 == d3, w1 * u1, 0.0) + tl.where(d0 == d3, w0 * u0, 0.0)
        y *= tl.sigmoid(y)
        tl.store(out + tl.cast(t, tl.int64) * size + channel, y.to(out.dtype.element_ty), mask=inside)
        u0, u1, u2, u3 = u1, u2, u3, ahead
        d0, d1, d2 = d1, d2, d3


@triton.jit
def _walk_up(
    u, dout, du, documents, weights, start, end, channel, inside, size, length,
    CHANNELS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Store rows start to end - 1 of du; return the sums of their share in the gradient of the taps.

    A row of du is whole when the three rows after it have given theirs, so the walk starts at end + 2; those
    three rows are neither stored nor summed.
    """
    w0, w1, w2, w3 = weights
    g0 = tl.zeros([CHANNELS], tl.float32)
    g1, g2, g3, n0, n1, n2 = g0, g0, g0, g0, g0, g0
    last = end + 2
    u0, u1, u2, u3 = _window(u, last, channel, inside, size, length)
    dy = _row(dout, last, channel, inside, size, length)
    d1 = _document(documents, last - 2, length, PACKED)
    d2 = _document(documents, last - 1, length, PACKED)
    d3 = _document(documents, last, length, PACKED)
    for back in range(last + 1 - start):
        t = last - back
        ahead_u = _row(u, t - 4, channel, inside, size, length)  # asked for before they are needed
        ahead_dy = _row(dout, t - 1, channel, inside, size, length)
        d0 = _document(documents, t - 3, length, PACKED)
        v0, v1 = tl.where(d0 == d3, u0, 0.0), tl.where(d1 == d3, u1, 0.0)
        v2 = tl.where(d2 == d3, u2, 0.0)
        y = w3 * u3 + w2 * v2 + w1 * v1 + w0 * v0
        gate = tl.sigmoid(y)
        dy *= gate * (1.0 + y * (1.0 - gate))
        here = du + tl.cast(t, tl.int64) * size + channel
        tl.store(here, (n0 + w3 * dy).to(du.dtype.element_ty), mask=inside & (t < end))
        n0 = n1 + tl.where(d2 == d3, w2 * dy, 0.0)
        n1 = n2 + tl.where(d1 == d3, w1 * dy, 0.0)
        n2 = tl.where(d0 == d3, w0 * dy, 0.0)
        dy = tl.where(t < end, dy, 0.0)
        g0, g1, g2, g3 = g0 + dy * v0, g1 + dy * v1, g2 + dy * v2, g3 + dy * u3
        u0, u1, u2, u3, dy = ahead_u, u0, u1, u2, ahead_dy
        d1, d2, d3 = d0, d1, d2
    return g0, g1, g2, g3


@triton.jit
def _backward_kernel(
    u, weight, documents, dout, du, sums, length, size,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    batch = tl.cast(tl.program_id(2), tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < size
    start = tl.program_id(0) * ROWS
    taps = _taps(weight, channel, inside, u.dtype.element_ty)
    row = batch * length * size
    g0, g1, g2, g3 = _walk_up(
        u + row, dout + row, du + row, documents + batch * length, taps,
        start, tl.minimum(start + ROWS, length), channel, inside, size, length, CHANNELS, PACKED,
    )  # fmt: skip
    at = sums + (batch * tl.num_programs(0) + tl.program_id(0)) * 4 * size + channel
    tl.store(at, g0, mask=inside)
    tl.store(at + size, g1, mask=inside)
    tl.store(at + 2 * size, g2, mask=inside)
    tl.store(at + 3 * size, g3, mask=inside)


def _launch(batch: int, length: int, size: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    grid = (triton.cdiv(length, _ROWS), triton.cdiv(size, _CHANNELS), batch)
    return grid, {"ROWS": _ROWS, "CHANNELS": _CHANNELS, "num_warps": _WARPS}


def conv_silu_forward(u: Tensor, weight: Tensor, documents: Tensor | None) -> Tensor:
    """SiLU of the convolution of contiguous u [B, T, C] with taps [C, 4]; documents [B, T] int or None."""
    out = torch.empty_like(u)
    grid, meta = _launch(*u.shape)
    packed = documents is not None
    _forward_kernel[grid](u, weight, documents if packed else u, out, *u.shape[1:], PACKED=packed, **meta)
    return out


def conv_silu_backward(
    u: Tensor, weight: Tensor, documents: Tensor | None, dout: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of u (its dtype) and of the taps (fp32), all tensors contiguous."""
    du = torch.empty_like(u)
    grid, meta = _launch(*u.shape)
    sums = torch.empty(grid[2] * grid[0], WIDTH, u.shape[2], dtype=torch.float32, device=u.device)
    packed = documents is not None
    _backward_kernel[grid](
        u, weight, documents if packed else u, dout, du, sums, *u.shape[1:], PACKED=packed, **meta
    )
    return du, sums.sum(0).t().contiguous()

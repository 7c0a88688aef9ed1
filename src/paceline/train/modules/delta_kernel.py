"""Triton kernel for the part of the chunked delta rule's gradient that fla-core cannot give on Hopper.

Triton 3.4 to 3.7.0 miscompiles, on Hopper, a product whose left operand is the transpose of an earlier
product's accumulator (fla-core issue 640); fla-core's `chunk_bwd_dqkwg` needs one and refuses to run. Here
the transposed scores are a product of their own, so no accumulator is ever transposed. The oracle is autograd
through `paceline.train.modules.delta.chunk_gated_delta`.
"""

# Kernels are no Python functions: their arguments have Triton's types, not Python's.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
"""Rows of a chunk, as in fla-core's kernels."""
_BLOCK = 64
_STAGES = 2


@triton.jit
def _tile(base, rows, columns, width: tl.constexpr):
    return tl.load(base + rows[:, None] * width + columns[None, :])


@triton.jit
def _decayed(scores, row, column, visible):
    """Scores times 2^(row - column) where visible, else 0. The exponent is clamped, because masked entries
    would overflow where a document starts."""
    return tl.where(visible, scores * tl.exp2(tl.minimum(row[:, None] - column[None, :], 0.0)), 0.0)


@triton.jit
def _products(
    delta, du, do, state, dstate, at, column,
    DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """What sums over the value columns: do S^T, delta dS^T, du S^T, do delta^T, its transpose, S . dS."""
    dq = tl.zeros([C, BK], tl.float32)
    dk = tl.zeros([C, BK], tl.float32)
    dw = tl.zeros([C, BK], tl.float32)
    p = tl.zeros([C, C], tl.float32)
    p_t = tl.zeros([C, C], tl.float32)
    kept = tl.zeros([BK], tl.float32)
    for part in range(DV // BV):
        value = part * BV + tl.arange(0, BV)
        b_delta = _tile(delta, at, value, DV)
        b_do = _tile(do, at, value, DV)
        s_t = tl.load(state + column[None, :] * DV + value[:, None])  # [BV, BK]
        ds_t = tl.load(dstate + column[None, :] * DV + value[:, None])
        kept += tl.sum(s_t.to(tl.float32) * ds_t.to(tl.float32), 0)
        dq = tl.dot(b_do, s_t, dq)
        dk = tl.dot(b_delta, ds_t, dk)
        dw = tl.dot(_tile(du, at, value, DV), s_t, dw)
        p = tl.dot(b_do, tl.trans(b_delta), p)
        p_t = tl.dot(b_delta, tl.trans(b_do), p_t)
    return dq, dk, dw, p, p_t, kept


@triton.jit
def _gradient_kernel(
    q, k, delta, du, do, gamma, state, dstate, dq, dk, dw, dgamma, length, rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One block of key columns of one chunk of one value head."""
    block, chunk, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = lane // HV, lane % HV
    i = tl.arange(0, C)
    first = tl.cast(batch, tl.int64) * length + chunk * C
    at = (first + i) * HV + head  # rows of [B, T, Hv]
    key_at = (first + i) * HK + head // (HV // HK)
    column = block * BK + tl.arange(0, BK)
    state_at = (first // C * HV + head) * DK * DV
    b_dq, b_dk, b_dw, p, p_t, kept = _products(
        delta, du, do, state + state_at, dstate + state_at, at, column, DK, DV, C, BK, BV
    )
    out = at[:, None] * DK + column[None, :]
    tl.store(dw + out, (-b_dw).to(dw.dtype.element_ty))
    b_gamma = tl.load(gamma + at)
    end = tl.load(gamma + (first + C - 1) * HV + head)
    b_q = _tile(q, key_at, column, DK)
    b_k = _tile(k, key_at, column, DK)
    b_dq *= tl.exp2(b_gamma)[:, None]
    b_dk *= tl.exp2(end - b_gamma)[:, None]
    # The chunk's last decay also scales the state that leaves it and every row's way into that state.
    at_end = tl.exp2(end) * tl.sum(kept, 0) + tl.sum(tl.sum(b_dk * b_k, 1), 0)
    p = _decayed(p, b_gamma, b_gamma, i[:, None] >= i[None, :])
    p_t = _decayed(p_t, -b_gamma, -b_gamma, i[:, None] <= i[None, :])
    b_dq = tl.dot(p.to(b_k.dtype), b_k, b_dq)
    b_dk = tl.dot(p_t.to(b_q.dtype), b_q, b_dk)
    grad = tl.sum(b_dq * b_q, 1) - tl.sum(b_dk * b_k, 1) + tl.where(i == C - 1, at_end, 0.0)
    tl.store(dq + out, b_dq.to(dq.dtype.element_ty))
    tl.store(dk + out, b_dk.to(dk.dtype.element_ty))
    tl.store(dgamma + tl.cast(block, tl.int64) * rows + at, grad)


def chunk_gradients(
    q: Tensor, k: Tensor, delta: Tensor, du: Tensor, do: Tensor, gamma: Tensor, state: Tensor, dstate: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k [B, T, Hk, dk] (scores and state, not the triangular inverse), of w [B, T, Hv, dk]
    and of gamma [B, T, Hv] fp32 (natural units, before the reverse sum over the chunk).

    delta, du, do: new values, their gradient, the outputs' gradient [B, T, Hv, dv]; gamma: decay summed
    within the chunk, log2; state, dstate: state that enters each chunk and gradient of the one that leaves it
    [B, T / 64, Hv, dk, dv]. T is a multiple of 64; all are contiguous and, but for gamma, of one dtype.
    """
    batch, length, key_heads, dk_size = k.shape
    heads, dv_size = delta.shape[2:]
    assert length % CHUNK == 0 and heads % key_heads == 0
    bk, bv = min(dk_size, _BLOCK), min(dv_size, _BLOCK)
    dq, dk = (q.new_empty(batch, length, heads, dk_size) for _ in range(2))
    dw = torch.empty_like(dq)
    dgamma = gamma.new_empty(dk_size // bk, batch, length, heads)
    grid = (dk_size // bk, length // CHUNK, batch * heads)
    # One pass over the values takes half the time with 4 warps; a loop over them leaves 4 warps no register.
    warps = 4 if dv_size <= _BLOCK else 8
    _gradient_kernel[grid](
        q, k, delta, du, do, gamma, state, dstate, dq, dk, dw, dgamma, length, batch * length * heads,
        HK=key_heads, HV=heads, DK=dk_size, DV=dv_size, C=CHUNK, BK=bk, BV=bv,
        num_warps=warps, num_stages=_STAGES,
    )  # fmt: skip
    if heads != key_heads:
        grouped = (batch, length, key_heads, heads // key_heads, dk_size)
        dq, dk = dq.view(grouped).sum(3), dk.view(grouped).sum(3)
    return dq, dk, dw, dgamma.sum(0)

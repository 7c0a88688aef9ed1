"""The gated delta rule for training: chunked, differentiable, plain torch, fp32 inside.

Per value head, with state S [dk, dv]: S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q.
The chunk form does everything but one product a chunk in batched matrix products, because the affine map
S_next = M S + B of a chunk can be formed for all chunks at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def _small_matmul(x: Tensor, y: Tensor) -> Tensor:
    """Products of very small blocks are faster as a broadcast sum, which the compiler fuses, than as a
    batched GEMM."""
    if x.shape[-1] <= 4:
        return (x.unsqueeze(-1) * y.unsqueeze(-3)).sum(-2)
    return x @ y


def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + A)^-1 of strictly lower A [..., C, C], C a power of two, by doubling diagonal blocks.

    Blocks and not the Neumann series: with repeated keys the powers of A grow like binomials and cancel
    catastrophically, while every intermediate of the block form is a block of the (bounded) inverse itself.
    """
    c = a.shape[-1]
    t = torch.ones_like(a[..., :1]).unsqueeze(-1)  # [..., C blocks, 1, 1]
    size = 1
    while size < c:
        pairs = c // (2 * size)
        blocks = a.unflatten(-2, (pairs, 2, size)).unflatten(-1, (pairs, 2, size))
        low = blocks[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        first, second = t[..., 0::2, :, :], t[..., 1::2, :, :]
        off = -_small_matmul(second, _small_matmul(low, first))
        t = torch.cat([torch.cat([first, torch.zeros_like(off)], -1), torch.cat([off, second], -1)], -2)
        size *= 2
    return t.squeeze(-3)


class _Inverse(torch.autograd.Function):
    """unit_lower_inverse with the two-product gradient dA = -T^T dT T^T."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        t = unit_lower_inverse(a)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return -(t.mT @ grad.contiguous() @ t.mT).tril(-1)


class _Plain(torch.autograd.Function):
    """Identity that lays out both the value and its gradient plainly: compiled graphs turn a reshape into a
    view by the strides seen when tracing, and those of permuted gradients can differ when the graph runs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clone(memory_format=torch.contiguous_format)


def _to_chunks(x: Tensor, chunks: int) -> Tensor:
    """[B, T, H, ...] -> [B, H, N, C, ...] in fp32."""
    return x.float().unflatten(1, (chunks, CHUNK)).movedim(3, 1).contiguous()


def _pad(x: Tensor, rows: int) -> Tensor:
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, rows)) if rows else x


def chunk_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, Hv, dv] (dtype of v) and the state after the last row [B, Hv, dk, dv] fp32.

    q, k: [B, T, Hk, dk], l2-normalised, q already scaled; v [B, T, Hv, dv]; g (log decay, fp32) and beta [B,
    T, Hv]. A padded row has g = 0 and beta = 0, so it leaves the state as it is.
    """
    length, heads = q.shape[1], v.shape[2]
    q, k, v, g, beta = (_Plain.apply(x) for x in (q, k, v, g, beta))
    rep = heads // q.shape[2]
    rows = -length % CHUNK
    n = (length + rows) // CHUNK
    q, k, vc, gc, bc = (_to_chunks(_pad(x, rows), n) for x in (q, k, v, g, beta))
    gamma = gc.cumsum(-1)
    tri = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).tril()
    decay = (gamma.unsqueeze(-1) - gamma.unsqueeze(-2)).masked_fill(~tri, float("-inf")).exp()
    bc = bc.unsqueeze(-1)
    kk = (k @ k.mT).repeat_interleave(rep, 1)
    qk = (q @ k.mT).repeat_interleave(rep, 1) * decay
    q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
    inv: Tensor = _Inverse.apply((kk * bc * decay).tril(-1))
    grow = gamma.exp().unsqueeze(-1)
    end = gamma[..., -1:].exp().unsqueeze(-1)
    u = inv @ (vc * bc)
    w = inv @ (k * bc * grow)
    k_end = (k * (gamma[..., -1:] - gamma).exp().unsqueeze(-1)).mT
    eye = torch.eye(k.shape[-1], device=v.device)
    step_m, step_b = eye * end - k_end @ w, k_end @ u
    read = q * grow - qk @ w
    s = torch.zeros_like(step_b[:, :, 0]) if state is None else state
    states = []
    for i in range(n):
        states.append(s)
        s = step_b[:, :, i] + step_m[:, :, i] @ s
    out = qk @ u + read @ torch.stack(states, 2)
    # Contiguous, so that the compiler need not guess the layout that a copy would have had.
    return out.movedim(1, 3).flatten(1, 2)[:, :length].to(v.dtype).contiguous(), s


def recurrent_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One row for each of B sequences (T = 1); shapes as in `chunk_gated_delta`. The state is updated in
    place."""
    rep = v.shape[2] // q.shape[2]
    qf, kf = (x[:, 0].float().repeat_interleave(rep, 1) for x in (q, k))
    decay = g[:, 0].exp().unsqueeze(-1)
    # Both reads go to the old state, so that it is streamed once: S'^T q = e^g S^T q + (k . q) delta.
    seen_k, seen_q = (torch.stack([kf, qf], -2) @ state).mul_(decay.unsqueeze(-1)).unbind(-2)
    delta = (v[:, 0].float() - seen_k) * beta[:, 0].float().unsqueeze(-1)
    state.mul_(decay.unsqueeze(-1)).addcmul_(kf.unsqueeze(-1), delta.unsqueeze(-2))
    out = seen_q + (kf * qf).sum(-1, keepdim=True) * delta
    return out.unsqueeze(1).to(v.dtype), state

"""Readable torch form of the gated delta operator: the oracle, and for now what runs on CUDA.

``window`` and ``commit`` keep every shape static and read nothing on the host, so that a step can be captured
in a CUDA graph; ``prefill`` loops over sequences on the host. Roundings to the model dtype happen where the
torch path of transformers 5.24 (``modeling_qwen3_5.py``) has them.

A row's bits must not depend on its neighbours, so products and sums are separate operators (each rounded
once, whatever the loop around it), and exp and its kin go through ``rowwise``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.kernels.gated_delta.base import DeltaState, DeltaWeights
from paceline.kernels.rows import rowwise

_L2_EPS = 1e-6
_CHUNK = 64


class _Rows(NamedTuple):
    """Inputs of the recurrence: k, v as stored in a slot, q beside them; all [..., rows, heads, width]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def window(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    weights: DeltaWeights,
    st: DeltaState,
    slots: Tensor,
    pending: Tensor,
    row_start: Tensor,
    row_count: Tensor,
    max_rows: int,
) -> Tensor:
    """Replay each slot's pending rows, then run its new window on top. See ``gated_delta.window``."""
    assert max_rows <= st.rows, f"a window of {max_rows} rows in slots of {st.rows}"
    steps = torch.arange(max_rows, device=qkv.device)
    rows = row_start[:, None] + steps
    valid = (steps < row_count[:, None]) & (slots > 0)[:, None]
    gather = rows.clamp(0, qkv.shape[0] - 1)

    taps = pending[:, None] + torch.arange(st.history, device=qkv.device)
    inputs = torch.cat([st.conv_rows[slots[:, None], taps], qkv[gather]], dim=1)
    new = _split(_conv_silu(inputs, weights), b[gather], a[gather], weights)
    state = _replay(st, slots, pending, weights.Hv // weights.Hk)
    # A slot without pending rows gets back the very bits it had: one unconditional write keeps shapes static.
    st.state.index_copy_(0, slots, state)
    out = _gated_norm(_recurrent(state, new), z[gather], weights)

    for stored, fresh in zip((st.k_rows, st.v_rows, st.g_rows, st.beta_rows), new[1:], strict=True):
        stored[:, :max_rows].index_copy_(0, slots, fresh)
    st.conv_rows[:, : inputs.shape[1]].index_copy_(0, slots, inputs)
    return _scatter_rows(out, rows, valid, qkv.shape[0])


def prefill(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    weights: DeltaWeights,
    st: DeltaState,
    slots: Tensor,
    fresh: Tensor,
    row_start: Tensor,
    row_count: Tensor,
) -> Tensor:
    """Run many rows a sequence in chunks of 64; store the state after the last. ``gated_delta.prefill``."""
    out = qkv.new_zeros(qkv.shape[0], weights.Hv * weights.dv)
    # One copy to the host for all four, not four.
    plan = torch.stack([slots, fresh.to(slots.dtype), row_start, row_count], dim=1).tolist()
    for slot, is_fresh, start, count in plan:
        if slot == 0 or count == 0:
            continue
        rows = slice(start, start + count)
        before = st.conv_rows[slot, : st.history]
        inputs = torch.cat([torch.zeros_like(before) if is_fresh else before, qkv[rows]])
        new = _split(_conv_silu(inputs[None], weights), b[None, rows], a[None, rows], weights)
        state = st.state[slot : slot + 1]
        state, o = _chunked(torch.zeros_like(state) if is_fresh else state, new)
        st.state[slot] = state[0]
        st.conv_rows[slot, : st.history] = inputs[count:]
        out[rows] = _gated_norm(o, z[None, rows], weights)[0]
    return out


def commit(st: DeltaState, src_slots: Tensor, dst_slots: Tensor, counts: Tensor) -> None:
    """Write src's state after ``counts`` stored rows, and its history, into dst. ``gated_delta.commit``."""
    taps = counts[:, None] + torch.arange(st.history, device=counts.device)
    history = st.conv_rows[src_slots[:, None], taps]
    ratio = st.v_rows.shape[2] // st.k_rows.shape[2]
    st.state.index_copy_(0, dst_slots, _replay(st, src_slots, counts, ratio))
    st.conv_rows[:, : st.history].index_copy_(0, dst_slots, history)


def _conv_silu(inputs: Tensor, weights: DeltaWeights) -> Tensor:
    """Causal depthwise conv and SiLU: [S, history + rows, conv_dim] -> [S, rows, conv_dim].

    Accumulated in fp32, rounded to the model dtype after the conv and again after SiLU, as transformers does.
    """
    width = weights.conv.shape[1]
    rows = inputs.shape[1] - width + 1
    taps = weights.conv.float()
    acc = inputs[:, :rows].float() * taps[:, 0]
    for j in range(1, width):
        acc = acc + inputs[:, j : j + rows].float() * taps[:, j]
    return _each_row(F.silu, acc.to(inputs.dtype))


def _split(mixed: Tensor, b: Tensor, a: Tensor, weights: DeltaWeights) -> _Rows:
    """Post-conv channels and the two gate projections -> what the recurrence takes."""
    key = weights.Hk * weights.dk
    q, k, v = mixed.split([key, key, weights.Hv * weights.dv], dim=-1)
    return _Rows(
        q=q.unflatten(-1, (weights.Hk, weights.dk)),
        k=k.unflatten(-1, (weights.Hk, weights.dk)),
        v=v.unflatten(-1, (weights.Hv, weights.dv)),
        g=-weights.A_log.exp() * _each_row(F.softplus, a.float() + weights.dt_bias),
        beta=_each_row(torch.sigmoid, b).float(),
    )


def _each_row(fn: Callable[..., Tensor], x: Tensor) -> Tensor:
    """``fn`` over [S, rows, ...], in a form that gives a row the same bits in any company."""
    return rowwise(fn, x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _l2norm(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _L2_EPS)


def _step(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """One token: state [S, Hv, dk, dv], k [S, Hv, dk], v [S, Hv, dv], decay = e^g, beta [S, Hv]; all fp32."""
    state = state * decay[..., None, None]
    delta = beta[..., None] * (v - (state * k[..., None]).sum(-2))
    return state + k[..., None] * delta[..., None, :]


def _replay(st: DeltaState, slots: Tensor, pending: Tensor, ratio: int) -> Tensor:
    """State of ``slots`` [S] after their first ``pending`` [S] stored rows; rows beyond are not looked at."""
    state = st.state[slots]
    keys = _l2norm(st.k_rows[slots]).repeat_interleave(ratio, dim=2)
    values, beta = st.v_rows[slots].float(), st.beta_rows[slots]
    decay = _each_row(torch.exp, st.g_rows[slots])
    for i in range(st.rows):
        # `where`, not a product with a mask: a garbage row may hold NaN.
        live = (pending > i)[:, None, None, None]
        state = torch.where(live, _step(state, keys[:, i], values[:, i], decay[:, i], beta[:, i]), state)
    return state


def _recurrent(state: Tensor, rows: _Rows) -> Tensor:
    """Row by row from ``state`` [S, Hv, dk, dv]; returns o [S, rows, Hv, dv] fp32."""
    ratio = rows.v.shape[2] // rows.k.shape[2]
    keys = _l2norm(rows.k).repeat_interleave(ratio, dim=2)
    queries = (_l2norm(rows.q) * rows.q.shape[-1] ** -0.5).repeat_interleave(ratio, dim=2)
    values, decay = rows.v.float(), _each_row(torch.exp, rows.g)
    out = []
    for i in range(rows.v.shape[1]):
        state = _step(state, keys[:, i], values[:, i], decay[:, i], rows.beta[:, i])
        out.append((state * queries[:, i, :, :, None]).sum(-2))
    return torch.stack(out, dim=1)


def _chunked(state: Tensor, rows: _Rows) -> tuple[Tensor, Tensor]:
    """The chunked form (WY): state [1, Hv, dk, dv] -> (state after the rows, o [1, rows, Hv, dv]), fp32.

    With gamma the running sum of g in a chunk and D_ij = exp(gamma_i - gamma_j) for i >= j: solve
    (I + strict_lower((beta K) K^T * D)) [U | Y] = [beta V | beta e^gamma K], then per chunk
    V' = U - Y S;  O = (Q e^gamma) S + (Q K^T * D) V';  S <- e^gamma_C S + (K e^(gamma_C - gamma))^T V'.
    """
    count, (dk, dv) = rows.v.shape[1], state.shape[-2:]
    ratio = rows.v.shape[2] // rows.k.shape[2]
    k = _chunks(_l2norm(rows.k).repeat_interleave(ratio, dim=2))
    q = _chunks((_l2norm(rows.q) * dk**-0.5).repeat_interleave(ratio, dim=2))
    v, beta, g = _chunks(rows.v.float()), _chunks(rows.beta[..., None]), _chunks(rows.g[..., None])
    # On the CPU each chunk is a call of one fixed shape, so it does not matter how many share the prefill.
    inner = rowwise(_within_chunk, q, k, v, g, beta)
    u, y, within, q_in, k_out, decay = inner.split([dv, dk, _CHUNK, dk, dk, 1], dim=-1)

    s, out = state[0], []
    for c in range(v.shape[0]):
        fresh = u[c] - y[c] @ s
        out.append(q_in[c] @ s + within[c] @ fresh)
        s = s * decay[c, :, -1:] + k_out[c].mT @ fresh
    return s[None], torch.cat(out, dim=1)[:, :count].transpose(0, 1)[None]


def _chunks(x: Tensor) -> Tensor:
    """[1, rows, heads, width] -> [chunks, heads, 64, width].

    The last chunk is filled up with zero rows; with k = 0 and g = 0 they change nothing.
    """
    padded = F.pad(x[0], (0, 0, 0, 0, 0, -x.shape[1] % _CHUNK))
    return padded.unflatten(0, (-1, _CHUNK)).transpose(1, 2)


def _within_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """What a chunk needs no state for: [U | Y | Q K^T * D | Q e^gamma | K e^(gamma_C - gamma) | e^gamma].

    Arguments [chunks, heads, 64, width], width 1 for g and beta.
    """
    gamma = g.double().cumsum(-2)  # in fp32 the difference of two large sums would have few digits left
    upper = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=g.device).triu(1)
    decay = (gamma - gamma.mT).masked_fill(upper, float("-inf")).float().exp()
    before, after = gamma.float().exp(), (gamma[..., -1:, :] - gamma).float().exp()
    right = torch.cat([beta * v, beta * before * k], dim=-1)
    solved = torch.linalg.solve_triangular((beta * k) @ k.mT * decay, right, upper=False, unitriangular=True)
    return torch.cat([solved, q @ k.mT * decay, q * before, k * after, before], dim=-1)


def _gated_norm(o: Tensor, z: Tensor, weights: DeltaWeights) -> Tensor:
    """RMS norm per value head, plain weight, SiLU gate: o [S, rows, Hv, dv], z [S, rows, Hv * dv]."""
    o = o.to(z.dtype).float()
    o = o * torch.rsqrt((o * o).mean(-1, keepdim=True) + weights.eps)
    scaled = weights.norm * o.to(z.dtype)
    gate = _each_row(F.silu, z.float()).unflatten(-1, (weights.Hv, weights.dv))
    return (scaled * gate).to(z.dtype).flatten(-2)


def _scatter_rows(out: Tensor, rows: Tensor, valid: Tensor, total: int) -> Tensor:
    """[S, rows, N] -> [total, N]; invalid rows land in a row that is cut off, rows of nobody stay zero."""
    flat = out.new_zeros(total + 1, out.shape[-1])
    flat.index_copy_(0, torch.where(valid, rows, total).flatten(), out.flatten(0, 1))
    return flat[:total]

"""Attention around a paged cache, in torch: the oracle, and the CUDA path (static shapes, no host wait)."""

from __future__ import annotations

import torch

from paceline.kernels.norm.reference import rms_norm
from paceline.kernels.rows import rowwise

ROWS_AT_ONCE = 64  # bounds the gathered copy of the cache on CUDA to 64 rows x max_context keys


def norm_rope(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    zero_centred: bool,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """RMS norm of every head of x [R, H, D], then rotary embedding of its first ``rd`` dims; contiguous.

    weight: [D], or None for heads without a norm, which are rotated as they are (``eps`` and ``zero_centred``
    are moot then).
    cos, sin: [P, rd / 2] in x's dtype, looked up by ``positions`` [R]; dim i pairs with i + rd / 2. As in
    Hugging Face, the norm's result, both products and their sum are each rounded to x's dtype.
    """
    normed = x if weight is None else rms_norm(x, weight, eps, zero_centred)
    half = cos.shape[-1]
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    a, b = normed[..., :half], normed[..., half : 2 * half]
    return torch.cat([a * c + -b * s, b * c + a * s, normed[..., 2 * half :]], dim=-1)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write k, v [R, Hkv, D] into the caches [num_blocks, block_size, Hkv, D].

    slot_mapping [R] = block * block_size + offset. Padding rows point into the null block 0, whose contents
    mean nothing.
    """
    k_cache.flatten(0, 1).index_copy_(0, slot_mapping, k)
    v_cache.flatten(0, 1).index_copy_(0, slot_mapping, v)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    row_seq: torch.Tensor,
    row_first: torch.Tensor,
    row_last: torch.Tensor,
    scale: float,
    max_context: int,
) -> torch.Tensor:
    """Row r of q [R, Hq, D] sees positions row_first[r]..row_last[r] of sequence row_seq[r] -> [R, Hq, D].

    k_cache, v_cache: [num_blocks, block_size, Hkv, D]; query head h reads kv head h // (Hq / Hkv).
    block_tables: [S, B].
    max_context: bound on row_last + 1, known on the host; positions beyond the tables are seen by no row. All
    in fp32, rounded once at the end. A row that sees nothing (row_last < row_first) gives zeros. Keys outside
    a row's range may hold anything, NaN included.

    The CPU goes row by row over the row's own keys with sums instead of matrix products: slow, but a row's
    bits depend on nothing else. CUDA gathers max_context keys a row.
    """
    if q.device.type == "cpu":
        return _cpu_rows(q, k_cache, v_cache, block_tables, row_seq, row_first, row_last, scale)
    slots = _slots(block_tables, k_cache.shape[1], max_context)
    at = torch.arange(slots.shape[1], device=q.device)
    pieces = []
    for i in range(0, q.shape[0], ROWS_AT_ONCE):
        rows = slice(i, i + ROWS_AT_ONCE)
        seen = (at >= row_first[rows, None]) & (at <= row_last[rows, None])
        mine = slots[row_seq[rows]]
        pieces.append(_attend(q[rows], k_cache.flatten(0, 1)[mine], v_cache.flatten(0, 1)[mine], seen, scale))
    return torch.cat(pieces) if pieces else torch.empty_like(q)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x [R, N] times sigmoid(gate [R, H, D], N = H * D, any stride); the sigmoid is rounded first."""
    return rowwise(lambda a, g: a * torch.sigmoid(g.reshape(a.shape).contiguous()), x, gate)


def _slots(block_tables: torch.Tensor, block_size: int, max_context: int) -> torch.Tensor:
    """[S, max_context, or what the tables hold]: where every position lies in the flattened cache."""
    reach = min(max_context, block_tables.shape[1] * block_size)
    at = torch.arange(reach, device=block_tables.device)
    return block_tables[:, at // block_size] * block_size + at % block_size


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [R, Hq, D], k and v [R, L, Hkv, D], seen [R, L] bool -> [R, Hq, D] in q's dtype."""
    grouped = q.float().unflatten(1, (k.shape[2], -1))
    hidden = ~seen[:, None, None, :]
    values = v.float().masked_fill(~seen[:, :, None, None], 0.0)  # 0 x NaN of a stale key would be NaN
    scores = (grouped @ k.float().permute(0, 2, 3, 1) * scale).masked_fill(hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)  # a row without keys: NaN -> 0
    return (weights @ values.transpose(1, 2)).flatten(1, 2).to(q.dtype)


def _cpu_rows(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    row_seq: torch.Tensor,
    row_first: torch.Tensor,
    row_last: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    out = torch.zeros(q.shape, dtype=q.dtype)
    block_size = k_cache.shape[1]
    spans = zip(row_seq.tolist(), row_first.tolist(), row_last.tolist(), strict=True)
    for row, (seq, first, last) in enumerate(spans):
        if last < first:
            continue
        at = torch.arange(first, last + 1)
        slots = block_tables[seq, at // block_size] * block_size + at % block_size
        k = k_cache.flatten(0, 1)[slots].float().transpose(0, 1)[:, None]  # [Hkv, 1, L, D]
        v = v_cache.flatten(0, 1)[slots].float().transpose(0, 1)[:, None]
        grouped = q[row].float().unflatten(0, (k.shape[0], -1)).unsqueeze(2)  # [Hkv, G, 1, D]
        weights = torch.softmax((grouped * k).sum(-1) * scale, dim=-1)
        out[row] = (weights.unsqueeze(-1) * v).sum(-2).flatten(0, 1).to(q.dtype)
    return out

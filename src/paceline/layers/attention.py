"""Attention over paged keys and values: the gated form of the targets and the plain form of the drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.kernels.attention import norm_rope, paged_attention, sigmoid_gate, store_kv

if TYPE_CHECKING:
    from paceline.kernels.linear import Linear
    from paceline.layers.batch import AttentionRows
    from paceline.layers.rotary import RotaryTables


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of one attention layer and how their queries and keys are normalised."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    zero_centred: bool
    """Whether the stored norm weight is w of (1 + w), as in the targets, or the factor itself."""

    @property
    def query_size(self) -> int:
        """Elements of all query heads of a row."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all key (or value) heads of a row."""
        return self.kv_heads * self.head_dim


class PagedHeads:
    """Norms, rotates, stores and attends: everything between the projections."""

    def __init__(
        self,
        shape: HeadShape,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        rotary: RotaryTables,
    ) -> None:
        """Without norms queries and keys are rotated only."""
        self.shape, self.rotary = shape, rotary
        self.q_norm, self.k_norm = q_norm, k_norm

    def store(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Norm and rotate keys [R, kv_size] (any row stride), then store them with values [R, kv_size]."""
        # Views by sizes, here and below: torch's unflatten and split cost more than some of the operators.
        split = (k.shape[0], self.shape.kv_heads, self.shape.head_dim)
        keys = self._normed(k.view(split), self.k_norm, positions)
        store_kv(keys, v.view(split), kv[0], kv[1], slot_mapping)

    def attend(
        self, q: torch.Tensor, rows: AttentionRows, kv: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Queries [R, heads, head_dim] (any row and head stride) over the cache -> [R, query_size]."""
        queries = self._normed(q, self.q_norm, rows.positions)
        out = paged_attention(
            queries,
            kv[0],
            kv[1],
            rows.block_tables,
            rows.row_seq,
            rows.row_first,
            rows.row_last,
            self.shape.head_dim**-0.5,
            rows.max_context,
        )
        return out.flatten(1)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
        shape, rotary = self.shape, self.rotary
        return norm_rope(x, weight, shape.eps, shape.zero_centred, rotary.cos, rotary.sin, positions)


class GatedAttention:
    """Attention whose output is scaled by a sigmoid gate from the query projection.

    The fused projection's rows are [query | gate] per head, then all keys, then all values.
    """

    def __init__(self, heads: PagedHeads, qkv: Linear, out: Linear) -> None:
        self._heads, self._qkv, self._out = heads, qkv, out
        self._sizes = [2 * heads.shape.query_size, heads.shape.kv_size, heads.shape.kv_size]

    def __call__(
        self, x: torch.Tensor, rows: AttentionRows, kv: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """[R, hidden] -> [R, hidden]; stores the rows' keys and values first, so a row sees itself."""
        shape = self._heads.shape
        queries, k, v = self._qkv(x).split_with_sizes(self._sizes, dim=1)
        q, gate = queries.view(x.shape[0], shape.heads, 2 * shape.head_dim).chunk(2, dim=-1)
        self._heads.store(k, v, rows.positions, rows.slot_mapping, kv)
        return self._out(sigmoid_gate(self._heads.attend(q, rows, kv), gate))


class PlainAttention:
    """Attention without a gate; the fused projection's rows are all queries, all keys, all values."""

    def __init__(self, heads: PagedHeads, qkv: Linear, out: Linear) -> None:
        self.heads, self.qkv, self.out = heads, qkv, out
        self._sizes = [heads.shape.query_size, heads.shape.kv_size, heads.shape.kv_size]

    def __call__(
        self, x: torch.Tensor, rows: AttentionRows, kv: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """[R, hidden] -> [R, hidden]; stores the rows' keys and values first, so a row sees itself."""
        shape = self.heads.shape
        q, k, v = self.qkv(x).split_with_sizes(self._sizes, dim=1)
        self.heads.store(k, v, rows.positions, rows.slot_mapping, kv)
        return self.out(self.heads.attend(q.view(x.shape[0], shape.heads, shape.head_dim), rows, kv))

"""Handing a drafter to ``cpu.cpp``: its structures, and the two calls."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from paceline.kernels import build
from paceline.kernels.linear import Linear
from paceline.kernels.product import CProduct, NativeProduct, native_product

Pair = tuple[torch.Tensor, torch.Tensor]
"""Key and value cache of a layer, each [num_blocks, block_size, kv_heads, head_dim], contiguous."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One drafter layer; norms are in model dtype."""

    qkv: Linear
    out: Linear
    gated: Linear
    """Both projections of the SwiGLU and its gate."""
    down: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    post_norm: torch.Tensor
    following: torch.Tensor
    """The norm behind the layer: the next one's, at last the final one."""
    window: int | None
    causal: bool


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """All of a drafter."""

    layers: Sequence[LayerParts]
    fc: Linear
    context_kv: Linear
    hidden_norm: torch.Tensor
    first_norm: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int
    mask: int
    eps: float

    @property
    def products(self) -> list[Linear]:
        """Every linear layer."""
        found = [self.fc, self.context_kv]
        for layer in self.layers:
            found += [layer.qkv, layer.out, layer.gated, layer.down]
        return found


def _fields(pointers: str, numbers: str) -> list[tuple[str, type]]:
    names = [(name, ctypes.c_void_p) for name in pointers.split()]
    return [*names, *((name, ctypes.c_int64) for name in numbers.split())]


_EXPORTS = (
    ("norm", "norm_run"),
    ("attention", "norm_rope_run"),
    ("attention", "store_kv_run"),
    ("attention", "attention_run"),
    ("sample", "sample_greedy"),
)
"""Library and name of each operator, in the order of `_Operators`."""


class _Operators(ctypes.Structure):
    _fields_ = _fields("norm norm_rope store_kv attention greedy", "")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, CProduct) for name in ("qkv", "out", "gated", "down")),
        *_fields("q_norm k_norm post_norm following", "window causal"),
    )


class _Drafter(ctypes.Structure):
    _fields_ = (
        ("op", _Operators),
        *_fields("layers", "count"),
        ("fc", CProduct),
        ("context_kv", CProduct),
        *_fields(
            "hidden_norm first_norm cos sin", "half is_bf16 hidden heads kv_heads dim max_position mask"
        ),
        ("eps", ctypes.c_double),
        ("scale", ctypes.c_double),
    )


# A call's numbers travel as bytes: a ctypes structure of as many fields takes 20 us longer.
_BLOCK = struct.Struct("@5P8q2Pq2P2qPqP")


def native_drafter(parts: DrafterParts) -> NativeDrafter | None:
    """The native passes, or None where they have to be composed."""
    if not parts.hidden_norm.is_cpu or any(native_product(layer) is None for layer in parts.products):
        return None
    libs = {name: build.library(name) for name in ("dflash", "norm", "attention", "sample")}
    found = {name: lib for name, lib in libs.items() if lib is not None}
    return NativeDrafter(parts, found) if len(found) == len(libs) else None


@dataclass(frozen=True, slots=True)
class Blocks:
    """S blocks to be drafted, `rows` rows each ([anchor, mask, ...]), of which the drafts 1..`wanted` count.

    Index tensors are contiguous int64; `counts` and `limit` as in `models.dflash_block.block_rows`.
    """

    anchors: torch.Tensor
    """[S]"""
    starts: torch.Tensor
    """[S]"""
    block_tables: torch.Tensor
    """[S, B]"""
    counts: torch.Tensor | None
    """[S], or None: all rows."""
    rows: int
    wanted: int
    limit: int
    embedding: torch.Tensor
    """[V, H] the target's table."""
    kv: Sequence[Pair]

    def check(self, dtype: torch.dtype) -> None:
        """That native code reads nothing beyond these tensors."""
        index = (self.anchors, self.starts, self.block_tables)
        for t in index if self.counts is None else (*index, self.counts):
            assert t.dtype is torch.int64 and t.is_contiguous(), "index tensors are contiguous int64"
        count = self.anchors.shape[0]
        assert self.starts.shape[0] == count <= self.block_tables.shape[0], self.block_tables.shape
        assert self.embedding.dtype is dtype is self.kv[0][0].dtype and self.embedding.is_contiguous(), dtype


class BestDrafts(NamedTuple):
    """The likeliest drafts of some blocks."""

    tokens: torch.Tensor
    """[S, wanted] int64"""
    leads: torch.Tensor | None
    """[S, wanted] fp32: by how much their logits exceed those of the ids that were asked about, if any."""


class NativeDrafter:
    """Both passes of a drafter; tensors are checked as far as native code could run out of them."""

    def __init__(self, parts: DrafterParts, libs: Mapping[str, ctypes.CDLL]) -> None:
        self._parts, self._dtype = parts, parts.hidden_norm.dtype
        self._hidden = parts.hidden_norm.shape[0]
        operators = _Operators(*(build.address(libs[op], name) for op, name in _EXPORTS))
        self._layers = (_Layer * len(parts.layers))(*(_layer(layer) for layer in parts.layers))
        self._drafter = _drafter(parts, operators, self._layers)
        self._address = ctypes.addressof(self._drafter)
        self._block = build.declare(libs["dflash"], "drafter_block", "ppp", checked=True)
        self._context = build.declare(libs["dflash"], "drafter_context", "pppiipp")
        self._pages = struct.Struct(f"@{2 * len(parts.layers)}P")

    def block(self, blocks: Blocks) -> torch.Tensor:
        """[S, wanted, H]: the rows of the wanted drafts after the final norm."""
        out = torch.empty(blocks.anchors.shape[0], blocks.wanted, self._hidden, dtype=self._dtype)
        self._run(blocks, out.data_ptr(), (0,) * 9)
        return out

    def drafts(
        self, blocks: Blocks, head: NativeProduct, ids: int, asked: torch.Tensor | None = None
    ) -> BestDrafts:
        """The best of the first `ids` logits that `head` makes of those rows, and by how much they lead over
        those of the ids `asked` [S, wanted] (negative: any number)."""
        out = torch.empty(blocks.anchors.shape[0], blocks.wanted, dtype=torch.int64)
        assert ids <= head.out_features, (ids, head.out_features)
        if asked is None:
            self._run(blocks, 0, (out.data_ptr(), ids, *head.fp32_fields, 0, 0, 0))
            return BestDrafts(out, None)
        assert asked.dtype is torch.int64 and asked.stride(1) == 1 and asked.shape == out.shape, asked.shape
        leads = torch.empty(out.shape, dtype=torch.float32)
        wanted = asked.data_ptr(), asked.stride(0), leads.data_ptr()
        self._run(blocks, 0, (out.data_ptr(), ids, *head.fp32_fields, *wanted))
        return BestDrafts(out, leads)

    def _run(self, b: Blocks, hidden: int, choice: tuple[int, ...]) -> None:
        b.check(self._dtype)
        count, width = b.anchors.shape[0], b.block_tables.shape[1]
        pages, page_size = b.kv[0][0].shape[:2]
        call = _BLOCK.pack(
            b.anchors.data_ptr(), b.starts.data_ptr(), b.block_tables.data_ptr(),
            0 if b.counts is None else b.counts.data_ptr(), b.embedding.data_ptr(),
            count, width, pages, page_size, b.embedding.shape[0], b.rows, b.wanted, b.limit,
            hidden, *choice,
        )  # fmt: skip
        wrong = self._block(self._address, self._addresses(b.kv), call)
        assert not wrong, "a drafter's block: an id, a range or a block is out of bounds"

    def context(
        self, features: torch.Tensor, positions: torch.Tensor, slot_mapping: torch.Tensor, kv: Sequence[Pair]
    ) -> None:
        """Store the context rows of `features` [R, K * H] at `positions` [R]; cache rows: `slot_mapping`."""
        rows, width = features.shape
        assert width == self._parts.fc.in_features and features.dtype is self._dtype, features.shape
        assert features.is_contiguous() and positions.is_contiguous() and slot_mapping.is_contiguous()
        assert kv[0][0].dtype is self._dtype, kv[0][0].dtype
        where = positions.data_ptr(), slot_mapping.data_ptr()
        self._context(self._address, self._addresses(kv), features.data_ptr(), width, rows, *where)

    def _addresses(self, kv: Sequence[Pair]) -> bytes:
        return self._pages.pack(*[cache.data_ptr() for pair in kv for cache in pair])


def _layer(parts: LayerParts) -> _Layer:
    matrices = (parts.qkv, parts.out, parts.gated, parts.down)
    norms = (parts.q_norm, parts.k_norm, parts.post_norm, parts.following)
    pointers = (None if norm is None else norm.data_ptr() for norm in norms)
    return _Layer(*(_known(layer) for layer in matrices), *pointers, parts.window or 0, parts.causal)


def _known(layer: Linear) -> CProduct:
    product = native_product(layer)
    assert product is not None, "checked before"
    return CProduct(*product.fields)


def _drafter(parts: DrafterParts, operators: _Operators, layers: ctypes.Array[_Layer]) -> _Drafter:
    tensors = (parts.hidden_norm, parts.first_norm, parts.cos, parts.sin)
    assert all(t.is_contiguous() for t in tensors)
    return _Drafter(
        operators, ctypes.addressof(layers), len(layers),
        _known(parts.fc), _known(parts.context_kv), *(t.data_ptr() for t in tensors),
        parts.cos.shape[1], parts.hidden_norm.dtype is torch.bfloat16, parts.hidden_norm.shape[0],
        parts.heads, parts.kv_heads, parts.head_dim, parts.max_position, parts.mask,
        parts.eps, parts.head_dim**-0.5,
    )  # fmt: skip

"""Handing a drafter to ``cpu.cpp``: its structures, and the two calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.kernels import build
from paceline.kernels.product import CProduct, NativeProduct

Pair = tuple[torch.Tensor, torch.Tensor]
"""Key and value cache of a layer, each [num_blocks, block_size, kv_heads, head_dim], contiguous."""


class Linear(Protocol):
    """A linear layer (`kernels.linear.Linear`); a native one has a `product`."""

    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One drafter layer; norms are in model dtype."""

    qkv: Linear
    out: Linear
    gate_up: Linear
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
            found += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return found


def _fields(pointers: str, numbers: str) -> list[tuple[str, type]]:
    names = [(name, ctypes.c_void_p) for name in pointers.split()]
    return [*names, *((name, ctypes.c_int64) for name in numbers.split())]


class _Operators(ctypes.Structure):
    _fields_ = _fields("norm norm_rope store_kv attention swiglu", "")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, CProduct) for name in ("qkv", "out", "gate_up", "down")),
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


class _Block(ctypes.Structure):
    _fields_ = (
        *_fields(
            "kv anchors starts tables counts embedding", "sequences table_width blocks block_size vocab"
        ),
        *_fields("", "rows wanted limit"),
        *_fields("out", ""),
    )


def native_drafter(parts: DrafterParts) -> NativeDrafter | None:
    """The native passes, or None where they have to be composed."""
    if not parts.hidden_norm.is_cpu or any(_product(layer) is None for layer in parts.products):
        return None
    libs = [build.library(name) for name in ("dflash", "norm", "attention", "swiglu")]
    found = [lib for lib in libs if lib is not None]
    return NativeDrafter(parts, *found) if len(found) == len(libs) else None


class NativeDrafter:
    """Both passes of a drafter; tensors are checked as far as native code could run out of them."""

    def __init__(
        self,
        parts: DrafterParts,
        lib: ctypes.CDLL,
        norm: ctypes.CDLL,
        attention: ctypes.CDLL,
        swiglu: ctypes.CDLL,
    ) -> None:
        self._parts, self._dtype = parts, parts.hidden_norm.dtype
        self._hidden = parts.hidden_norm.shape[0]
        operators = _Operators(
            build.address(norm, "norm_run"),
            build.address(attention, "norm_rope_run"),
            build.address(attention, "store_kv_run"),
            build.address(attention, "attention_run"),
            build.address(swiglu, "swiglu_run"),
        )
        self._layers = (_Layer * len(parts.layers))(*(_layer(layer) for layer in parts.layers))
        self._drafter = _drafter(parts, operators, self._layers)
        self._address = ctypes.addressof(self._drafter)
        self._block = build.declare(lib, "drafter_block", "pp", checked=True)
        self._context = build.declare(lib, "drafter_context", "pppiipp")
        self._pages = ctypes.c_void_p * (2 * len(parts.layers))

    def block(
        self,
        anchors: torch.Tensor,
        starts: torch.Tensor,
        block_tables: torch.Tensor,
        counts: torch.Tensor | None,
        embedding: torch.Tensor,
        kv: Sequence[Pair],
        rows: int,
        wanted: int,
        limit: int,
    ) -> torch.Tensor:
        """Blocks of `rows` rows [anchor, mask, ...] at `starts` [S] -> [S, wanted, H]: rows 1..wanted.

        anchors, starts, counts [S] and block_tables [S, B]: int64; counts and limit as in
        `models.dflash_block.block_rows`; embedding [V, H].
        """
        index = (anchors, starts, block_tables) if counts is None else (anchors, starts, block_tables, counts)
        assert all(t.dtype is torch.int64 and t.is_contiguous() for t in index), "contiguous int64"
        assert embedding.dtype is self._dtype and embedding.is_contiguous(), embedding.dtype
        sequences = anchors.shape[0]
        assert starts.shape[0] == sequences <= block_tables.shape[0], (starts.shape, block_tables.shape)
        out = torch.empty(sequences, wanted, self._hidden, dtype=self._dtype)
        blocks, block_size = kv[0][0].shape[:2]
        call = _Block(
            self._addresses(kv), anchors.data_ptr(), starts.data_ptr(), block_tables.data_ptr(),
            None if counts is None else counts.data_ptr(), embedding.data_ptr(),
            sequences, block_tables.shape[1], blocks, block_size, embedding.shape[0],
            rows, wanted, limit, out.data_ptr(),
        )  # fmt: skip
        wrong = self._block(self._address, ctypes.addressof(call))
        assert not wrong, "a drafter's block: an id, a range or a block is out of bounds"
        return out

    def context(
        self, features: torch.Tensor, positions: torch.Tensor, slot_mapping: torch.Tensor, kv: Sequence[Pair]
    ) -> None:
        """Store the context rows of `features` [R, K * H] at `positions` [R]; cache rows: `slot_mapping`."""
        rows, width = features.shape
        assert width == self._parts.fc.in_features and features.dtype is self._dtype, features.shape
        assert features.is_contiguous() and positions.is_contiguous() and slot_mapping.is_contiguous()
        where = positions.data_ptr(), slot_mapping.data_ptr()
        self._context(self._address, self._addresses(kv), features.data_ptr(), width, rows, *where)

    def _addresses(self, kv: Sequence[Pair]) -> int:
        """Where the caches lie, as an array that lives until the next call."""
        assert kv[0][0].dtype is self._dtype, kv[0][0].dtype
        self._held = self._pages(*(cache.data_ptr() for pair in kv for cache in pair))
        return ctypes.addressof(self._held)


def _product(layer: Linear) -> NativeProduct | None:
    found: NativeProduct | None = getattr(layer, "product", None)
    return found


def _layer(parts: LayerParts) -> _Layer:
    matrices = (parts.qkv, parts.out, parts.gate_up, parts.down)
    norms = (parts.q_norm, parts.k_norm, parts.post_norm, parts.following)
    products = (CProduct(*_known(layer)) for layer in matrices)
    pointers = (None if norm is None else norm.data_ptr() for norm in norms)
    return _Layer(*products, *pointers, parts.window or 0, parts.causal)


def _known(layer: Linear) -> NativeProduct:
    product = _product(layer)
    assert product is not None, "checked before"
    return product


def _drafter(parts: DrafterParts, operators: _Operators, layers: ctypes.Array[_Layer]) -> _Drafter:
    tensors = (parts.hidden_norm, parts.first_norm, parts.cos, parts.sin)
    assert all(t.is_contiguous() for t in tensors)
    return _Drafter(
        operators, ctypes.addressof(layers), len(layers),
        CProduct(*_known(parts.fc)), CProduct(*_known(parts.context_kv)), *(t.data_ptr() for t in tensors),
        parts.cos.shape[1], parts.hidden_norm.dtype is torch.bfloat16, parts.hidden_norm.shape[0],
        parts.heads, parts.kv_heads, parts.head_dim, parts.max_position, parts.mask,
        parts.eps, parts.head_dim**-0.5,
    )  # fmt: skip

"""Operators around the paged cache: native code against the reference, row by row."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from paceline.kernels import attention, build
from paceline.kernels.attention import reference
from paceline.kernels.attention.cpu import CpuAttention
from tests.kernels.invariance import (
    DTYPES,
    ROWS,
    assert_blind_to_others,
    assert_rows_independent,
    assert_threads_agree,
    library_for,
    machine_params,
    ulps,
)

# Hq, Hkv, D, block size
GEOMETRIES = [(4, 2, 64, 16), (3, 1, 24, 8), (5, 5, 16, 64), (8, 1, 96, 24), (2, 1, 7, 8)]
LENGTH = 150


@dataclass
class Paged:
    """Three sequences of LENGTH positions in shuffled blocks; everything that no position owns is NaN."""

    k: torch.Tensor
    v: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    tables: torch.Tensor

    @classmethod
    def random(cls, kv_heads: int, dim: int, block: int, dtype: torch.dtype, seed: int = 0) -> Paged:
        draw = torch.Generator().manual_seed(seed)
        blocks = -(-LENGTH // block)
        shape = (3 * blocks + 1, block, kv_heads, dim)
        k, v = (torch.randn(3, LENGTH, kv_heads, dim, generator=draw).to(dtype) for _ in range(2))
        k_cache, v_cache = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        tables = (torch.randperm(3 * blocks) + 1).view(3, blocks)
        at = torch.arange(LENGTH)
        for s in range(3):
            slots = tables[s, at // block] * block + at % block
            reference.store_kv(k[s], v[s], k_cache, v_cache, slots)
        return cls(k, v, k_cache, v_cache, tables)

    def attend(self, op, q: torch.Tensor, seq: torch.Tensor, first: torch.Tensor, last: torch.Tensor):
        return op(q, self.k_cache, self.v_cache, self.tables, seq, first, last, q.shape[-1] ** -0.5, LENGTH)


def ranges() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ROWS rows: windows of one sequence, single rows, sliding ranges, a padding row."""
    seq = torch.tensor([0] * 9 + [1] * 20 + [2, 0, 1, 2] + [2] * 7)
    last = torch.randint(0, LENGTH - 10, (ROWS,))
    last[:9] = torch.arange(120, 129)
    first = torch.where(torch.rand(ROWS) < 0.5, 0, (last - torch.randint(0, 100, (ROWS,))).clamp(min=0))
    last[5], first[5] = -1, 0
    return seq, first, last


def plain_attention(paged: Paged, q, seq, first, last) -> torch.Tensor:
    out = torch.zeros_like(q)
    for r in range(q.shape[0]):
        if last[r] >= first[r]:
            span = slice(int(first[r]), int(last[r]) + 1)
            keys, values = (t[seq[r], span].transpose(0, 1)[None] for t in (paged.k, paged.v))
            query = q[r][None, :, None]
            out[r] = F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)[0, :, 0]
    return out


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_attention_is_right_and_rows_are_independent(march, dtype, geometry):
    heads, kv_heads, dim, block = geometry
    native = CpuAttention(library_for("attention", march))
    paged = Paged.random(kv_heads, dim, block, dtype)
    q, (seq, first, last) = (torch.randn(ROWS, heads, dim) * 2).to(dtype), ranges()
    out = paged.attend(native.paged_attention, q, seq, first, last)
    expected = paged.attend(reference.paged_attention, q, seq, first, last)
    torch.testing.assert_close(out, expected, rtol=ulps(dtype), atol=ulps(dtype))
    torch.testing.assert_close(expected, plain_attention(paged, q, seq, first, last), rtol=0.02, atol=0.02)
    assert out[5].eq(0).all()
    counts = (1, 2, 3, 5, 8, 16, 17, 33, 40)
    run = native.paged_attention
    assert_rows_independent(lambda *t: paged.attend(run, *t), q, seq, first, last, counts=counts)
    assert_threads_agree(lambda: paged.attend(native.paged_attention, q, seq, first, last))


def test_reference_rows_are_independent():
    paged = Paged.random(2, 32, 16, torch.bfloat16)
    q, (seq, first, last) = torch.randn(ROWS, 4, 32).bfloat16(), ranges()
    op = attention.reference.paged_attention
    assert_rows_independent(lambda *t: paged.attend(op, *t), q, seq, first, last, counts=(1, 3, 16, 40))


@pytest.mark.parametrize("module", [attention, reference])
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_size_and_stale_keys_change_no_bit(module, dtype):
    q, (seq, first, last) = torch.randn(ROWS, 4, 32).to(dtype), ranges()
    results = []
    for block in (8, 24, 64):
        paged = Paged.random(2, 32, block, dtype)
        results.append(paged.attend(module.paged_attention, q, seq, first, last))
        # A rejected draft leaves keys behind: what lies beyond a row's range may not matter.
        at = torch.arange(int(last.max()) + 1, LENGTH)
        for s in range(3):
            paged.k_cache[paged.tables[s, at // block], at % block] = float("inf")
        assert torch.equal(paged.attend(module.paged_attention, q, seq, first, last), results[-1])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_gathered_form_of_cuda_equals_the_row_loop():
    """The static-shape form, which runs on CUDA, against the CPU's loop; larger contexts change nothing."""
    paged = Paged.random(2, 32, 16, torch.float32)
    q, (seq, first, last) = torch.randn(ROWS, 4, 32), ranges()
    expected = paged.attend(reference.paged_attention, q, seq, first, last)
    for context in (LENGTH, paged.tables.shape[1] * 16):
        slots = reference._slots(paged.tables, 16, context)[seq]
        at = torch.arange(context)
        seen = (at >= first[:, None]) & (at <= last[:, None])
        keys, values = (t.flatten(0, 1)[slots] for t in (paged.k_cache, paged.v_cache))
        out = reference._attend(q, keys, values, seen, 32**-0.5)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim,half", [(64, 8), (24, 12), (7, 2), (32, 16)])
@pytest.mark.parametrize("norm", ["zero-centred", "plain", "none"])
def test_norm_rope(march, dtype, dim, half, norm):
    native = CpuAttention(library_for("attention", march))
    x = torch.randn(ROWS, 3, 2 * dim).to(dtype)[..., :dim]  # as the query half of a gated projection
    weight = None if norm == "none" else torch.randn(dim).to(dtype)
    positions = torch.randint(0, 50, (ROWS,))
    angles = torch.randn(50, half)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def run(op, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return op(x, weight, 1e-6, norm == "zero-centred", cos, sin, positions)

    out = run(native.norm_rope, x, positions)
    assert out.is_contiguous()
    expected = run(reference.norm_rope, x, positions)
    torch.testing.assert_close(out, expected, rtol=ulps(dtype), atol=ulps(dtype))
    if norm == "none":  # what is not rotated is copied
        assert torch.equal(out[..., 2 * half :], x[..., 2 * half :])
    for op in (native.norm_rope, reference.norm_rope):
        assert_rows_independent(lambda x, p, op=op: run(op, x, p), x, positions)


@pytest.mark.parametrize("module", [attention, reference])
@pytest.mark.parametrize("dtype", DTYPES)
def test_store_kv_writes_its_slots_only(module, dtype):
    k, v = torch.randn(5, 2, 16).to(dtype), torch.randn(5, 2, 20).to(dtype)[..., :16]
    caches = [torch.full((4, 8, 2, 16), 7.0, dtype=dtype) for _ in range(2)]
    slots = torch.tensor([9, 31, 16, 0, 0])  # the last two are padding
    module.store_kv(k, v, *caches, slots)
    for rows, cache in zip((k, v), caches, strict=True):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[slots[:3]], rows[:3])
        untouched = torch.ones(32, dtype=torch.bool)
        untouched[slots] = False
        assert flat[untouched].eq(7.0).all()


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [7, 64])
def test_sigmoid_gate(march, dtype, dim):
    native = CpuAttention(library_for("attention", march))
    x = torch.randn(ROWS, 3 * dim).to(dtype)
    gate = (torch.randn(ROWS, 3, 2 * dim) * 4).to(dtype)[..., dim:]
    expected = reference.sigmoid_gate(x, gate)
    torch.testing.assert_close(native.sigmoid_gate(x, gate), expected, rtol=ulps(dtype), atol=1e-6)
    for op in (native.sigmoid_gate, reference.sigmoid_gate):
        assert_rows_independent(op, x, gate)
        assert_blind_to_others(lambda x, op=op: op(x, gate), x)


def test_package_runs_what_it_reports():
    assert (attention.native() is None) == (build.isa("attention") == "torch")


@pytest.mark.parametrize("wrong", ["row_seq", "row_last", "block", "row_first"])
def test_an_index_out_of_bounds_is_refused_before_memory_is_read(wrong):
    if build.library("attention") is None:
        pytest.skip("no native code here")
    q, cache = torch.randn(1, 4, 32), torch.randn(4, 8, 2, 32)
    index = {"row_seq": 0, "row_first": 0, "row_last": 7, "block": 1}
    index[wrong] = {"row_seq": 1, "row_first": -1, "row_last": 16, "block": 4}[wrong]
    tables = torch.tensor([[index["block"], 2]])
    rows = [torch.tensor([index[name]]) for name in ("row_seq", "row_first", "row_last")]
    with pytest.raises(AssertionError, match="out of bounds"):
        attention.paged_attention(q, cache, cache, tables, *rows, 1.0, 16)

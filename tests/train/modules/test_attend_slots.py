"""Attention of a rollout's step: the plain form against torch's attention, the kernel against the plain form.

The kernel runs on a GPU, or without one in Triton's interpreter: TRITON_INTERPRET=1 pytest <this file>, where
Triton is installed.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from paceline.train.modules.attend_slots import attend_slots, fused_attend_slots

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 and Triton")


def inputs(slots, query_heads, heads, length, dim, dtype=torch.float32, device="cpu"):
    """Arguments of `attend_slots`; both ends of a slot occur, and rows past a position hold rubbish."""
    g = torch.Generator().manual_seed(slots + length)
    q = torch.randn(slots, query_heads, dim, generator=g)
    k, v = torch.randn(2, slots, heads, dim, generator=g)
    keys, values = (torch.randn(slots, heads, length, dim, generator=g) for _ in range(2))
    positions = torch.randint(0, length, (slots,), generator=g)
    positions[0], positions[-1] = 0, length - 1
    past = torch.arange(length).view(1, 1, -1, 1) > positions.view(-1, 1, 1, 1)
    keys.masked_fill_(past, float("nan") if dtype == torch.float32 else 3e4)
    values.masked_fill_(past, 3e4)
    q, k, v, keys, values = (x.to(device, dtype) for x in (q, k, v, keys, values))
    return q, k, v, positions.to(device), keys, values


def exact(q, k, v, positions, keys, values):
    """By torch's attention, a slot at a time, in fp32."""
    rows = []
    for slot, position in enumerate(positions.tolist()):
        own_keys = torch.cat([keys[slot, :, :position], k[slot].unsqueeze(1)], 1).float()
        own_values = torch.cat([values[slot, :, :position], v[slot].unsqueeze(1)], 1).float()
        query = q[slot].float().unsqueeze(1)
        out = F.scaled_dot_product_attention(
            query.unsqueeze(0), own_keys.unsqueeze(0), own_values.unsqueeze(0), enable_gqa=True
        )
        rows.append(out[0, :, 0])
    return torch.stack(rows)


def check(form, arguments, tolerance):
    q, k, v, positions, keys, values = arguments
    want, before = exact(*arguments), (keys.clone(), values.clone())
    got = form(*arguments)
    assert got.dtype == q.dtype and got.shape == q.shape
    error = float((got.float() - want).norm() / want.norm())
    assert error < tolerance, error
    slots = torch.arange(len(positions), device=q.device)
    for new, old, stored in zip((k, v), before, (keys, values), strict=True):
        old[slots, :, positions] = new
        torch.testing.assert_close(stored, old, rtol=0, atol=0, equal_nan=True)


SHAPES = [(5, 3, 1, 21, 16), (4, 8, 2, 70, 32), (3, 9, 3, 130, 64), (3, 4, 1, 70, 128), (2, 16, 1, 40, 256)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_plain_form_is_attention(shape):
    check(attend_slots, inputs(*shape), 1e-6)


@interpreted
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
def test_the_kernel_in_the_interpreter(shape, dtype, tolerance):
    check(fused_attend_slots, inputs(*shape, dtype), tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (300, 9, 3, 416, 64), (40, 8, 2, 1000, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernel_on_a_gpu(shape, dtype):
    pytest.importorskip("triton")
    check(attend_slots, inputs(*shape, dtype, "cuda"), 4e-3 if dtype == torch.bfloat16 else 1e-3)


def step(q, k, v, positions, keys, values):
    """A layer's step as far as `torch.compile` is concerned."""
    return attend_slots(q * 2, k + 1, v - 1, positions, keys, values) + 1


def test_one_graph():
    arguments = inputs(3, 4, 2, 9, 16)
    want = step(*(x.clone() for x in arguments))
    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="eager")(*arguments), want)


def test_the_operator_declares_what_it_writes():
    """What `torch.compile` trusts when it leaves the caches where they are."""
    arguments = inputs(3, 4, 2, 9, 16)
    written = [a.name for a in fused_attend_slots._opoverload._schema.arguments if a.alias_info is not None]
    assert written == ["keys", "values"]
    with torch._subclasses.FakeTensorMode() as mode:
        assert fused_attend_slots(*map(mode.from_tensor, arguments)).shape == arguments[0].shape
    if INTERPRETED:
        torch.library.opcheck(fused_attend_slots, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.gpu
@torch.no_grad()
def test_a_compiled_step_in_a_graph_writes_in_place():
    pytest.importorskip("triton")
    arguments = inputs(300, 9, 3, 416, 64, torch.bfloat16, "cuda")
    keys, values = arguments[4:]
    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    compiled(*arguments)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, graph = torch.cuda.memory_allocated(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = compiled(*arguments)
    assert torch.cuda.max_memory_allocated() - before < keys.nbytes, "a cache was copied"
    arguments[3].copy_(arguments[3].flip(0))  # a graph reads positions, it does not remember them
    others = [x.clone() for x in arguments]
    graph.replay()
    torch.testing.assert_close(got, step(*others), rtol=2e-2, atol=2e-2)
    assert torch.equal(keys, others[4]) and torch.equal(values, others[5])

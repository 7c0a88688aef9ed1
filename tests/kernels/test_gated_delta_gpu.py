"""Windows and keyed sampling on CUDA: no host synchronisation, capturable, equal to eager and to the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from paceline.kernels import sample
from paceline.kernels.gated_delta import (
    DeltaShape,
    DeltaState,
    DeltaWeights,
    commit,
    prefill,
    reference,
    window,
)
from tests.kernels.gated_delta_cases import Layer

pytestmark = pytest.mark.gpu

SHAPE = DeltaShape(Hk=2, Hv=6, dk=32, dv=64)
SEQUENCES, WINDOW, ROWS = 8, 8, 64


@contextmanager
def no_sync() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def to_cuda(layer: Layer) -> Layer:
    w = layer.weights
    weights = DeltaWeights(
        w.conv.cuda(), w.A_log.cuda(), w.dt_bias.cuda(), w.norm.cuda(), w.eps, w.Hk, w.Hv, w.dk, w.dv
    )
    return Layer(weights, DeltaState(*(t.cuda() for t in layer.st.tensors())), layer.generator)


def filled(dtype: torch.dtype) -> Layer:
    """Every slot but the null one holds a prefilled sequence and a window."""
    layer = Layer.make(SHAPE, dtype, slots=SEQUENCES + 2, rows=WINDOW)
    count = SEQUENCES + 1
    slots, starts = torch.arange(1, count + 1), torch.arange(count)
    index = (torch.full((count,), True), starts * 5, torch.full((count,), 5))
    reference.prefill(*layer.rows(5 * count), layer.weights, layer.st, slots, *index)
    index = (torch.zeros(count, dtype=torch.int64), starts * WINDOW, torch.full((count,), WINDOW), WINDOW)
    reference.window(*layer.rows(WINDOW * count), layer.weights, layer.st, slots, *index)
    return layer


def random_step(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """slots, pending, row_start, row_count: windows of 0..8 rows, some sequences only padding."""
    slots = (torch.randperm(SEQUENCES + 1, generator=g) + 1)[:SEQUENCES]
    count = torch.randint(0, WINDOW + 1, (SEQUENCES,), generator=g)
    padding = torch.rand(SEQUENCES, generator=g) < 0.2
    slots, count = slots.masked_fill(padding, 0), count.masked_fill(padding, 0)
    pending = torch.randint(0, WINDOW + 1, (SEQUENCES,), generator=g)
    return slots, pending, count.cumsum(0) - count, count


def test_captured_window_equals_eager_for_other_slots_lengths_and_acceptances() -> None:
    host = filled(torch.bfloat16)
    graphed, eager = to_cuda(host), to_cuda(host)
    static_rows = [x.cuda() for x in host.rows(ROWS)]
    static_index = [t.cuda() for t in random_step(host.generator)]

    def step(layer: Layer, rows: list[Tensor], index: list[Tensor]) -> Tensor:
        return window(*rows, layer.weights, layer.st, *index, WINDOW)

    scratch = to_cuda(host)
    step(scratch, static_rows, static_index)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(graphed, static_rows, static_index)
    for _ in range(6):
        rows, index = host.rows(ROWS), random_step(host.generator)
        for static, new in zip([*static_rows, *static_index], [*rows, *index], strict=True):
            static.copy_(new)
        graph.replay()
        with no_sync():
            want = step(eager, static_rows, static_index)
        assert torch.equal(out, want)
        for a, b in zip(graphed.st.tensors(), eager.st.tensors(), strict=True):
            assert torch.equal(a[1:], b[1:])


def test_cuda_equals_cpu() -> None:
    host = filled(torch.float32)
    device = to_cuda(host)
    for _ in range(3):
        rows, index = host.rows(ROWS), random_step(host.generator)
        got = window(*(x.cuda() for x in rows), device.weights, device.st, *(t.cuda() for t in index), WINDOW)
        want = reference.window(*rows, host.weights, host.st, *index, WINDOW)
        torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-5)
    rows = host.rows(100)
    index = (torch.tensor([1, 2]), torch.tensor([True, True]), torch.tensor([0, 70]), torch.tensor([70, 30]))
    got = prefill(*(x.cuda() for x in rows), device.weights, device.st, *(t.cuda() for t in index))
    want = reference.prefill(*rows, host.weights, host.st, *index)
    torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-5)


def test_commit_and_sampling_do_not_synchronise() -> None:
    device = to_cuda(filled(torch.bfloat16))
    slots = torch.arange(1, 4, device="cuda")
    scores = torch.randn(8, 5000)
    keys, positions = torch.randint(-(2**63), 2**63 - 1, (8,)), torch.arange(8)
    on_device = [t.cuda() for t in (scores, keys, positions)]
    with no_sync():
        commit(device.st, slots, slots, torch.zeros_like(slots) + 3)
        drawn, best = sample.gumbel_argmax(*on_device), sample.greedy(on_device[0])
        noise = sample.gumbel_noise(*on_device[1:], 5000)
    assert torch.equal(drawn.cpu(), sample.gumbel_argmax(scores, keys, positions))
    assert torch.equal(best.cpu(), scores.argmax(-1))
    torch.testing.assert_close(noise.cpu(), sample.gumbel_noise(keys, positions, 5000), rtol=3e-7, atol=1e-12)

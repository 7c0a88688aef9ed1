"""The dense operators on CUDA: equal to the CPU, no wait for the device, replayable in a graph."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels import attention, norm, swiglu
from paceline.kernels.linear import make_linear

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, DIM, BLOCK, WIDTH = 4, 2, 32, 16, 128
ROWS, CONTEXT = 11, 96


def inputs(seed: int) -> dict[str, torch.Tensor]:
    """One step's tensors: 3 sequences, ROWS rows, a padding row."""
    draw = torch.Generator().manual_seed(seed)
    last = torch.randint(0, CONTEXT, (ROWS,), generator=draw)
    last[4] = -1
    return {
        "x": torch.randn(ROWS, WIDTH, generator=draw),
        "k": torch.randn(ROWS, KV_HEADS, DIM, generator=draw),
        "positions": torch.randint(0, CONTEXT, (ROWS,), generator=draw),
        "slots": torch.randperm(18 * BLOCK, generator=draw)[:ROWS] + BLOCK,
        "tables": (torch.randperm(18, generator=draw) + 1).view(3, 6),
        "seq": torch.randint(0, 3, (ROWS,), generator=draw),
        "first": torch.randint(0, 20, (ROWS,), generator=draw),
        "last": last,
    }


class Step:
    """All operators in a row, as a layer uses them."""

    def __init__(self, device: str) -> None:
        draw = torch.Generator().manual_seed(9)

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw).to(device)

        self.wide = make_linear(randn(2 * WIDTH, WIDTH) / 11, deterministic=True)
        self.narrow = make_linear(randn(WIDTH, WIDTH) / 11, deterministic=False)
        self.weight, self.head_weight = randn(WIDTH), randn(DIM)
        angles = randn(CONTEXT, 8)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.cache = [randn(19, BLOCK, KV_HEADS, DIM) for _ in range(2)]

    def __call__(self, t: dict[str, torch.Tensor]) -> torch.Tensor:
        normed, residual = norm.add_rms_norm(t["x"], t["x"], self.weight, 1e-6, True)
        both = self.wide(normed).view(ROWS, HEADS, 2 * DIM)
        q = attention.norm_rope(
            both[..., :DIM], self.head_weight, 1e-6, True, self.cos, self.sin, t["positions"]
        )
        attention.store_kv(t["k"], t["k"], *self.cache, t["slots"])
        ranges = t["tables"], t["seq"], t["first"], t["last"]
        out = attention.paged_attention(q, *self.cache, *ranges, DIM**-0.5, CONTEXT)
        gated = attention.sigmoid_gate(out.flatten(1), both[..., DIM:])
        return swiglu.swiglu(self.wide(self.narrow(gated))) + residual


def test_step_equals_the_cpu_and_replays_in_a_graph():
    on_cpu, on_gpu = Step("cpu"), Step("cuda")
    static = {name: t.cuda() for name, t in inputs(0).items()}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        on_gpu(static)  # warm up, off the default stream, as capturing wants it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            out = on_gpu(static)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_cpu(inputs(0))
    for seed in (0, 1, 2):
        fresh = inputs(seed)
        for name, t in fresh.items():
            static[name].copy_(t)
        graph.replay()
        torch.testing.assert_close(out.cpu(), on_cpu(fresh), rtol=1e-4, atol=1e-4)


def test_eager_step_never_waits():
    step, tensors = Step("cuda"), {name: t.cuda() for name, t in inputs(3).items()}
    step(tensors)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_float32_scores_of_bf16_weights_are_not_rounded():
    weight, x = torch.randn(300, 64).bfloat16(), torch.randn(9, 64).bfloat16()
    out = make_linear(weight.cuda(), deterministic=True)(x.cuda(), torch.float32)
    torch.testing.assert_close(out.cpu(), x.float() @ weight.float().t(), rtol=1e-5, atol=1e-4)

"""On a CUDA device: the CPU's numbers, no wait for the host, and one graph for all lengths, tables and
slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from paceline.layers.batch import FlatBatch, cache_rows
from paceline.models.base import TargetCache, TargetModel
from paceline.models.dflash_block import BlockRequest
from paceline.models.registry import load_drafter, load_mtp, load_target
from tests import tiny
from tests.models.harness import BLOCK, Runner, moved, new_kv, tables
from tests.tiny_dense import DENSE, make_dense

pytestmark = pytest.mark.gpu

SEQUENCES, ROWS, LENGTH = 4, 8, 256
TAPS = (0, 2, 3)


@pytest.fixture(scope="module", params=["hybrid", "llama3", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of four layers."""
    out = tmp_path_factory.mktemp(request.param)
    if request.param == "hybrid":
        return tiny.make_target(out, tokenizer=False)
    return make_dense(out, replace(DENSE[request.param], num_hidden_layers=4), tokenizer=False)


@pytest.fixture(scope="module")
def drafter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny.drafter_for("plain", layer_types=("sliding_attention", "full_attention"), sliding_window=12)
    return tiny.make_drafter(tmp_path_factory.mktemp("drafter"), shape)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, folder: Path) -> TargetModel:
    return load_target(folder, request.param, "cuda")


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(step: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of `step`, after a warm-up on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def window_inputs(seed: int, permuted: bool) -> tuple[torch.Tensor, FlatBatch]:
    """A bucket of SEQUENCES x ROWS rows with random lengths and pending rows; the last sequence is
    padding."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(SEQUENCES, generator=generator) if permuted else torch.arange(SEQUENCES)
    starts = torch.randint(20, LENGTH - ROWS, (SEQUENCES,), generator=generator)
    counts = torch.randint(1, ROWS + 1, (SEQUENCES,), generator=generator)
    pending = torch.randint(0, ROWS + 1, (SEQUENCES,), generator=generator)
    counts[-1], pending[-1] = 0, 0
    slots = (1 + order).where(torch.arange(SEQUENCES) < SEQUENCES - 1, 0)
    block_tables = tables(SEQUENCES, LENGTH)[order]
    row_seq = torch.arange(SEQUENCES).repeat_interleave(ROWS)
    step = torch.arange(ROWS).repeat(SEQUENCES)
    live = step < counts[row_seq]
    positions = torch.where(live, starts[row_seq] + step, 0)
    where = cache_rows(positions, row_seq, block_tables, BLOCK)
    batch = FlatBatch(
        kind="window",
        positions=positions,
        row_seq=row_seq,
        row_first=torch.zeros_like(positions),
        row_last=torch.where(live, positions, -1),
        slot_mapping=torch.where(live, where, 0),
        block_tables=block_tables,
        slots=slots,
        pending=pending,
        fresh=torch.zeros(SEQUENCES, dtype=torch.bool),
        row_start=torch.arange(SEQUENCES) * ROWS,
        row_count=counts,
        max_rows=ROWS,
        max_context=LENGTH,
    )
    ids = torch.randint(0, tiny.VOCAB, positions.shape, generator=generator)
    return ids, batch


def random_cache(runner: Runner, seed: int) -> None:
    """Fill a runner's cache with the same values for the same seed."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for tensor in cache_tensors(runner.cache):
        tensor.normal_(generator=generator)
    for state in runner.cache.delta:
        state.g_rows.abs_().neg_()
        state.beta_rows.sigmoid_()


def cache_tensors(cache: TargetCache) -> list[torch.Tensor]:
    return [t for pair in cache.kv for t in pair] + [t for state in cache.delta for t in state.tensors()]


def test_numbers_of_the_cpu(folder: Path) -> None:
    """Prefill and windows in float32, several sequences."""
    results = []
    for device in ("cpu", "cuda"):
        model = load_target(folder, device=device)
        runner = Runner(model, sequences=2, device=device)
        hidden = [runner.prefill(range(60, 100), 0).hidden, runner.prefill(range(5, 24), 1).hidden]
        hidden += [runner.window([[7, 8, 9, 10], [11, 12]], [2, 1]).hidden]
        hidden += [runner.window([[17], [18, 19, 20, 21, 22, 23, 24, 25]], [1, 8]).hidden]
        results.append(model.logits(torch.cat(hidden)).cpu())
    assert (results[0] - results[1]).abs().max().item() < 2e-4


def test_a_window_waits_for_nothing(model: TargetModel) -> None:
    runner = Runner(model, SEQUENCES, LENGTH, "cuda")
    random_cache(runner, 0)
    ids, batch = on_device(window_inputs(1, permuted=False))
    step(model, runner, ids, batch)
    with no_synchronisation():
        step(model, runner, ids, batch)


def test_one_graph_for_every_window(model: TargetModel) -> None:
    """Captured once, replayed with other ids, lengths, tables, slots and pending rows: what eager gives."""
    graphed, eager = (Runner(model, SEQUENCES, LENGTH, "cuda") for _ in range(2))
    ids, batch = on_device(window_inputs(1, permuted=False))
    random_cache(graphed, 0)
    graph, out = captured(lambda: step(model, graphed, ids, batch))
    for seed in (2, 3, 4):
        new_ids, new = on_device(window_inputs(seed, permuted=True))
        ids.copy_(new_ids)
        overwrite(batch, new)
        for runner in (graphed, eager):
            random_cache(runner, seed)
        graph.replay()
        expected = step(model, eager, new_ids, new)
        live = new.row_last >= 0
        torch.testing.assert_close(out[live], expected[live], rtol=0, atol=0)
        for a, b in zip(cache_tensors(graphed.cache), cache_tensors(eager.cache), strict=True):
            torch.testing.assert_close(a[1:], b[1:], rtol=0, atol=0)


def test_one_graph_for_every_block_of_the_drafter(model: TargetModel, drafter_folder: Path) -> None:
    drafter = load_drafter(drafter_folder, model.spec, "cuda")
    spec = drafter.spec
    kv = new_kv(spec.num_layers, spec.kv_heads, spec.head_dim, SEQUENCES, LENGTH, spec.dtype, "cuda")
    for k, v in kv:
        k.normal_(), v.normal_()
    features = torch.randn(6, len(TAPS) * spec.hidden_size, device="cuda", dtype=spec.dtype)
    anchors = torch.randint(0, tiny.VOCAB, (SEQUENCES,), device="cuda")
    starts = torch.tensor([20, 70, 33, 200], device="cuda")
    counts = torch.tensor([8, 3, 1, 0], device="cuda")
    block_tables = tables(SEQUENCES, LENGTH).cuda()
    context = torch.arange(6, device="cuda") + 4
    where = cache_rows(context, torch.zeros_like(context), block_tables, BLOCK)

    def run() -> torch.Tensor:
        drafter.append_context(features, context, where, kv)
        request = BlockRequest(anchors, starts, block_tables, 7, 7, LENGTH, counts)
        return drafter.draft(request, kv, model)

    run()
    with no_synchronisation():
        run()
    graph, out = captured(run)
    anchors.add_(1).remainder_(tiny.VOCAB)
    starts.copy_(torch.tensor([31, 12, 90, 55]))
    counts.copy_(torch.tensor([8, 8, 0, 5]))
    block_tables.copy_(block_tables.roll(1, 0))
    features.normal_()
    graph.replay()
    got = out.clone()
    torch.testing.assert_close(got, run(), rtol=0, atol=0)


def test_one_graph_for_the_head(model: TargetModel, folder: Path) -> None:
    if not model.spec.mtp_layers:
        pytest.skip("dense models have no multi-token head")
    head = load_mtp(folder, model, "cuda")
    spec = head.spec
    kv = new_kv(1, spec.kv_heads, spec.head_dim, SEQUENCES, LENGTH, spec.dtype, "cuda")[0]
    kv[0].normal_(), kv[1].normal_()
    ids = torch.randint(0, tiny.VOCAB, (SEQUENCES,), device="cuda")
    hidden = torch.randn(SEQUENCES, spec.hidden_size, device="cuda", dtype=spec.dtype)
    positions = torch.tensor([9, 40, 100, 0], device="cuda")
    block_tables = tables(SEQUENCES, LENGTH).cuda()
    rows = torch.arange(SEQUENCES, device="cuda")

    def run() -> torch.Tensor:
        where = cache_rows(positions, rows, block_tables, BLOCK)
        out = head.forward(ids, hidden, positions, rows, block_tables, where, kv, LENGTH)
        return model.logits(out)

    run()
    with no_synchronisation():
        run()
    graph, out = captured(run)
    hidden.normal_()
    positions.copy_(torch.tensor([200, 1, 17, 60]))
    graph.replay()
    got = out.clone()
    torch.testing.assert_close(got, run(), rtol=0, atol=0)


def step(model: TargetModel, runner: Runner, ids: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
    """One pass: logits beside the tapped features."""
    out = model.forward(ids, batch, runner.cache, TAPS)
    assert out.features is not None
    return torch.cat([model.logits(out.hidden), out.features.float()], dim=1)


def on_device(inputs: tuple[torch.Tensor, FlatBatch]) -> tuple[torch.Tensor, FlatBatch]:
    return inputs[0].cuda(), moved(inputs[1], "cuda")


def overwrite(batch: FlatBatch, new: FlatBatch) -> None:
    """Give a captured batch other contents in place."""
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, torch.Tensor):
            value.copy_(getattr(new, field.name))

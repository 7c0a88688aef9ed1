"""On a CUDA device: laying out a step waits for nothing, can be captured, and equals the layout on a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import pytest
import torch

from paceline.cache.swap import HostSwap
from paceline.cache.tensors import CacheTensors
from paceline.engine.batch import BatchBuilder
from paceline.engine.layout import WindowLayout
from paceline.engine.plan import PrefillChunk, Window
from paceline.layers.batch import FlatBatch
from tests.cache.shapes import tiny_shape
from tests.engine.sequences import decoding, make

pytestmark = pytest.mark.gpu
BS = 8


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any wait of the host for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def tensors_of(batch: FlatBatch) -> dict[str, torch.Tensor]:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: value.cpu() for name, value in values.items() if isinstance(value, torch.Tensor)}


def windows() -> list[Window]:
    return [
        Window(decoding(7, [3, 5, 9], 2, pending=1), 3),
        Window(decoding(20, [1, 2, 4, 8], 1, pending=3), 1),
        Window(decoding(11, [6, 7, 10], 4), 4),
    ]


def builder(device: str) -> BatchBuilder:
    return BatchBuilder(block_size=BS, num_slots=9, max_blocks=16, device=device)


def layout(device: str) -> WindowLayout:
    return WindowLayout(num_seqs=4, max_rows=4, max_blocks=5, block_size=BS, max_context=40, device=device)


def test_packed_batches_equal_the_hosts_and_wait_for_nothing() -> None:
    prompt = make(30)
    prompt.slot = 3
    prompt.set_blocks([11, 12, 13, 14])
    chunks = [PrefillChunk(prompt, 0, 13)]
    sequences = [w.sequence for w in windows()]
    gpu, cpu = builder("cuda"), builder("cpu")
    with no_waiting():
        batches = [gpu.build_windows(windows()), gpu.build_prefill(chunks)]
        drafts = gpu.build_drafts(sequences, 3)
    for batch, host in zip(batches, [cpu.build_windows(windows()), cpu.build_prefill(chunks)], strict=True):
        expected = tensors_of(host)
        for name, value in tensors_of(batch).items():
            assert torch.equal(value, expected[name]), name
    assert drafts.lengths.tolist() == [7, 20, 11]


def test_a_captured_layout_follows_loads_and_commits() -> None:
    gpu, cpu = layout("cuda"), layout("cpu")
    counts = torch.tensor([2, 1, 4, 0], device="cuda")
    gpu.load(windows())
    gpu.batch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = gpu.batch()
        gpu.advance(counts)
    for turn in range(3):
        loaded = windows()[turn:]  # the rest of the bucket is padding
        moved = torch.tensor([[2, 1, 4, 0], [1, 3, 0, 0], [4, 0, 0, 0]][turn])
        with no_waiting():
            gpu.load(loaded)
            counts.copy_(moved.pin_memory(), non_blocking=True)
            graph.replay()
        cpu.load(loaded)
        expected = tensors_of(cpu.batch())
        cpu.advance(moved)
        for name in ("positions", "row_seq", "row_first", "row_last", "slot_mapping", "row_start"):
            assert torch.equal(getattr(batch, name).cpu(), expected[name]), name
        assert torch.equal(gpu.lengths.cpu(), cpu.lengths) and torch.equal(gpu.pending.cpu(), cpu.pending)


def test_a_sequence_comes_back_from_pinned_memory_byte_for_byte() -> None:
    tensors = CacheTensors.allocate(tiny_shape(), num_blocks=8, num_slots=4, device="cuda")
    stacks = (*tensors.block_stacks, *tensors.slot_stacks)
    for stack in stacks:
        stack.copy_(torch.randn(stack.shape, device="cuda"))
    swap = HostSwap(tensors, limit_bytes=2**30)
    blocks = [s[:, [5, 2]].clone() for s in tensors.block_stacks]
    slots = [s[:, 1].clone() for s in tensors.slot_stacks]
    handle = swap.save([5, 2], 1)
    assert all(t.is_pinned() for t in (*handle.blocks, *handle.slot))
    for stack in stacks:
        stack.fill_(float("nan"))
    swap.restore(handle, [1, 7], 3)
    assert all(
        torch.equal(s[:, [1, 7]], saved) for s, saved in zip(tensors.block_stacks, blocks, strict=True)
    )
    assert all(torch.equal(s[:, 3], saved) for s, saved in zip(tensors.slot_stacks, slots, strict=True))

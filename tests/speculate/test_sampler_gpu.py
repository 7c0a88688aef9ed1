"""The sampler on CUDA: no host wait between logits and tokens; a captured step follows its inputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.speculate.sampler import Sampler, SampleRows
from tests.speculate.sampling_oracle import CASES, request

pytestmark = pytest.mark.gpu

VOCAB, WIDTH = 5003, 4
SEQUENCES = len(CASES)


@pytest.fixture
def no_host_wait() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def filled(device: str) -> Sampler:
    sampler = Sampler(VOCAB, SEQUENCES + 1, device)
    for slot, fields in enumerate(CASES.values(), start=1):
        sampler.add(slot, request(key=slot, **fields))
    return sampler


def step(
    sampler: Sampler, logits: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft, sample the windows, commit `counts` tokens of each: what a decode step asks of the sampler."""
    drafted = torch.zeros(slots.shape[0], 0, dtype=torch.int64, device=slots.device)
    windows = logits.view(slots.shape[0], WIDTH, -1)
    drafts = sampler.draft(windows[:, : WIDTH - 1], slots, lengths, 0, drafted, "coupled")
    seqs = torch.arange(slots.shape[0], device=slots.device)
    row_seq = seqs[:, None].expand(-1, WIDTH).reshape(-1)
    positions = (lengths[:, None] + torch.arange(WIDTH, device=slots.device)).reshape(-1)
    rows = SampleRows.windows(slots, drafts, row_seq, seqs * WIDTH, positions)
    tokens = sampler.sample(logits, rows)
    sampler.commit(slots, tokens.view(-1, WIDTH), counts)
    return drafts, tokens


def inputs(device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(SEQUENCES * WIDTH, VOCAB + 5, generator=generator) * 4
    slots = torch.randperm(SEQUENCES, generator=generator) + 1
    lengths = torch.randint(4, 90, (SEQUENCES,), generator=generator)
    counts = torch.randint(0, WIDTH + 1, (SEQUENCES,), generator=generator)
    return logits.to(device), slots.to(device), lengths.to(device), counts.to(device)


def test_no_host_wait(no_host_wait: None) -> None:
    torch.cuda.set_sync_debug_mode("default")
    sampler, given = filled("cuda"), inputs("cuda", 0)
    torch.cuda.set_sync_debug_mode("error")
    step(sampler, *given)


def test_a_captured_step_follows_its_inputs() -> None:
    eager, captured = filled("cuda"), filled("cuda")
    given = inputs("cuda", 0)
    for sampler in (eager, captured):
        step(sampler, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(captured, *given)
    for seed in range(1, 5):
        fresh = inputs("cuda", seed)
        for old, new in zip(given, fresh, strict=True):
            old.copy_(new)
        graph.replay()
        for got, wanted in zip(out, step(eager, *fresh), strict=True):
            assert torch.equal(got, wanted)


def test_cuda_agrees_with_the_cpu() -> None:
    """Same tokens but where two scores are a rounding apart, which these logits do not have."""
    there, here = filled("cuda"), filled("cpu")
    for seed in range(3):
        on_gpu, on_cpu = inputs("cuda", seed), inputs("cpu", seed)
        for got, wanted in zip(step(there, *on_gpu), step(here, *on_cpu), strict=True):
            assert torch.equal(got.cpu(), wanted)

"""Checks shared by the operator tests: a row's result may depend on nothing but the row's own inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from paceline.kernels import build

ROWS = 40
DTYPES = [torch.bfloat16, torch.float32]

# Lesser CPUs that the compiler can aim at, and a feature that it takes to run their code.
MACHINES = {"native": "", "skylake-avx512": "avx512dq", "x86-64-v3": "avx2", "x86-64": "sse2"}


def machine_params() -> list[object]:
    """Parameters for ``library(op, march)``: this machine, and (slow: one compilation each) lesser ones."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in MACHINES if name != "native"]
    return ["native", *slow]


def library_for(op: str, march: str):
    """The library of ``op`` built for ``march``; skips where it cannot be built or run."""
    flags = Path("/proc/cpuinfo").read_text()
    if MACHINES[march] not in flags:
        pytest.skip(f"this CPU does not run code for {march}")
    lib = build.library(op, march)
    if lib is None:
        pytest.skip("no native kernels here")
    return lib


def assert_rows_independent(
    fn: Callable[..., torch.Tensor], *tensors: torch.Tensor, counts: Sequence[int] = range(1, ROWS + 1)
) -> None:
    """``fn`` gives every one of ROWS rows the same bits in calls of any size and at any place."""
    whole = fn(*tensors)
    assert whole.shape[0] == ROWS and not whole.isnan().any()
    for count in counts:
        start = (7 * count) % (ROWS - count + 1)
        part = fn(*(t[start : start + count] for t in tensors))
        assert torch.equal(part, whole[start : start + count]), f"{count} rows from {start} differ"
    order = torch.randperm(ROWS)
    assert torch.equal(fn(*(t[order] for t in tensors)), whole[order]), "the order of rows matters"


def assert_blind_to_others(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Row 3 of x keeps its bits while all other rows hold NaN."""
    poisoned = torch.full_like(x, float("nan"))
    poisoned[3] = x[3]
    assert torch.equal(fn(poisoned)[3], fn(x)[3])


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_threads_agree(fn: Callable[[], torch.Tensor]) -> None:
    """One, two and three threads give the same bits."""
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(fn())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def ulps(dtype: torch.dtype) -> float:
    """A tolerance relative to the largest value: a few units in the last place."""
    return 2.0**-7 if dtype is torch.bfloat16 else 4e-6

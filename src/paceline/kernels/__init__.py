"""Operators, one folder each: ``reference.py`` (readable torch: the oracle, and what runs on CUDA for now)
beside ``cpu.py`` + ``cpu.cpp`` (native CPU code); the folder's ``__init__`` dispatches.

Rule of every operator: the result of a row depends on that row's inputs alone, never on how many rows or
sequences share the call, nor on the number of threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from paceline.kernels import build


def prepare() -> None:
    """Compile what is not compiled yet, all operators side by side: a first start waits for the slowest."""
    names = sorted(p.parent.name for p in build.KERNELS.glob("*/cpu.cpp"))
    if build.library(names[0]) is None:  # a warning has said why; the others would only repeat it
        return
    with ThreadPoolExecutor() as pool:
        list(pool.map(build.library, names))


def live(device: str = "cpu") -> dict[str, str]:
    """Which code of every operator runs on ``device``: {'linear': 'cpu-avx512bf16', ...}; 'torch': reference.

    On the CPU this compiles what is not compiled yet.
    """
    if device == "cpu":
        prepare()
    names = sorted(p.parent.name for p in build.KERNELS.glob("*/reference.py"))
    return {name: build.isa(name) if device == "cpu" else "torch" for name in names}

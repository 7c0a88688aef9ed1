"""Shared test set-up: a quiet machine, fixed seeds, poisoned memory, no network."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest

# Before torch is imported anywhere: idle OpenMP threads must sleep, not spin, as workers share cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Cache tensors start as NaN, so that an element which is read before it was written fails the test.
os.environ.setdefault("PACELINE_POISON", "1")
# Tests use local folders only; a hub look-up would hang on a machine without network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(autouse=True)
def fixed_seeds() -> Iterator[None]:
    """Every test starts from the same random state, whatever ran before it."""
    random.seed(0)
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            module.random.seed(0) if name == "numpy" else module.manual_seed(0)
    yield


@pytest.fixture(autouse=True)
def poisoned_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every `torch.empty` starts as NaN (or the largest integer), so that an element left unwritten shows."""
    if request.node.get_closest_marker("gpu") or "torch" not in sys.modules:
        yield
        return
    torch = sys.modules["torch"]
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)

"""What deterministic mode rests on, looked at when a model is loaded: a row's bits, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from paceline.kernels.linear.base import Linear

PROBED_ROWS = (1, 2, 7, 8, 9, 17)
_known: dict[tuple[str, int, int, torch.dtype, int], bool] = {}


def rows_are_independent(layer: Linear, dtype: torch.dtype) -> bool:
    """Whether a row of ``layer`` has the same bits alone, in calls of several sizes and at several places.

    The native product is so by construction; this confirms it, once a shape, with the layer's own weights.
    """
    key = (layer.kind, layer.out_features, layer.in_features, dtype, torch.get_num_threads())
    if key not in _known:
        x = torch.randn(max(PROBED_ROWS), layer.in_features, generator=torch.Generator().manual_seed(0)).to(
            dtype
        )
        full = layer(x)
        sizes = all(torch.equal(layer(x[:rows]), full[:rows]) for rows in PROBED_ROWS)
        _known[key] = sizes and torch.equal(layer(x.flip(0)).flip(0), full)
    return _known[key]


def cost_of_determinism(layer: Linear, dtype: torch.dtype, device: torch.device, rows: int = 1) -> float:
    """Time of ``layer`` over the time of torch's own product of that shape, for ``rows`` rows (medians)."""
    x = torch.randn(rows, layer.in_features).to(device, dtype)
    weight = torch.randn(layer.out_features, layer.in_features).to(device, dtype)
    return _median_time(lambda: layer(x), device) / _median_time(lambda: F.linear(x, weight), device)


def _median_time(run: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    times = []
    for _ in range(repeats + 3):  # the first few warm up
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return sorted(times[3:])[repeats // 2]

"""Where a decode step's time goes on a GPU: its kernels as the device ran them, and its parts one by one.

The first looks at a step as it runs, a replayed graph included. The second waits for the device around each
part, so it is for steps that keep the device busy: where launching kernels is what takes time, parts look
longer than they are in a graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from paceline.bench.rows import rounded
from paceline.bench.spans import Place, Spans
from paceline.engine.runner import Runner
from paceline.kernels.linear.reference import ReferenceLinear
from paceline.layers import attention, gated_delta_net

if TYPE_CHECKING:
    from paceline.engine.step import StepParts

T = TypeVar("T")

KINDS = {
    "matrix products": ("gemm", "gemv", "nvjet", "cutlass", "xmma", "splitk"),
    "gathers and scatters": ("index", "gather", "scatter"),
    "reductions": ("reduce", "softmax", "sort", "topk", "scan"),
    "elementwise and copies": ("elementwise", "copy", "memcpy", "memset", "cat", "fill"),
}
"""Words in a kernel's name, first match counts."""


def kernels(step: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Run `step` and sum its kernels: number, busy milliseconds, and both by kind."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        result = step()
        torch.cuda.synchronize()
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        if event.device_type == DeviceType.CUDA:
            kind = _kind(event.key.lower())
            counts[kind] += event.count
            times[kind] += event.self_device_time_total / 1e3
    return result, {
        "kernels": sum(counts.values()),
        "busy_ms": rounded(sum(times.values())),
        "by_kind": {kind: {"kernels": counts[kind], "ms": rounded(times[kind])} for kind in sorted(times)},
    }


def _kind(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "others")


@dataclass(slots=True)
class _DeviceSpans(Spans):
    """Spans of device work: waits before and after each labelled call."""

    def _counted(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def finished(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            _synchronise()
            return result

        counted = Spans._counted(self, label, finished)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            _synchronise()
            return counted(*args, **kwargs)

        return call


def split(step: Callable[[], T], parts: StepParts, *, by_operator: bool) -> tuple[T, dict[str, float]]:
    """Run `step`, an eager one, and give the milliseconds of its parts; `rest` is what no part covers."""
    places = _operators(parts) if by_operator else _phases(parts)
    spans = _DeviceSpans()
    with spans.watching((Runner, "decode"), places):
        result = step()
    times = {label: rounded(1e3 * spans.seconds[label]) for label in places}
    return result, times | {"rest": rounded(1e3 * (spans.within_seconds - sum(spans.seconds.values())))}


def _operators(parts: StepParts) -> dict[str, list[Place]]:
    return {
        "matrix products": [(ReferenceLinear, "__call__")],
        "recurrence": [(gated_delta_net, "window")],
        "attention": [(attention, "paged_attention")],
        "sampling": [(parts.sampler, "sample"), (parts.sampler, "draft")],
    }


def _phases(parts: StepParts) -> dict[str, list[Place]]:
    target = type(parts.target)
    found: dict[str, list[Place]] = {"verify": [(target, "forward"), (target, "logits")]}
    if parts.proposer:
        found["draft"] = [(type(parts.proposer), "propose"), (type(parts.proposer), "observe")]
    return found | {"sample": [(parts.sampler, "sample")]}


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()

"""Checks of scales: there, of the right shape, of values that kernels take, and shared where they must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from paceline.models.checkpoint import Checkpoint
from paceline.quantize.layout import fused_group
from paceline.quantize.nvfp4 import BLOCK


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a checkpoint."""

    severity: Literal["error", "warning"]
    """error: it does not load, or computes nonsense. warning: it loads, but something is off."""
    code: str
    message: str
    fix: str


def quantized_modules(checkpoint: Checkpoint) -> dict[str, str]:
    """Modules whose weight is stored in few bits: `modelopt`, `compressed` or `fp8`."""
    found = {}
    for name, info in checkpoint.tensors.items():
        if name.endswith(".weight_packed"):
            found[name.removesuffix(".weight_packed")] = "compressed"
        elif name.endswith(".weight") and info.dtype in ("U8", "F8_E4M3"):
            found[name.removesuffix(".weight")] = "modelopt" if info.dtype == "U8" else "fp8"
    return found


def scale_tensors(checkpoint: Checkpoint, module: str, layout: str) -> Iterator[Problem]:
    """Scales of one quantised module that are missing or of another shape; from headers alone."""
    tensors = checkpoint.tensors
    wanted = {
        "modelopt": ("weight_scale", "weight_scale_2"),
        "compressed": ("weight_scale", "weight_global_scale"),
        "fp8": ("weight_scale",),
    }[layout]
    missing = [part for part in wanted if f"{module}.{part}" not in tensors]
    if missing:
        yield Problem(
            "error",
            "scale-missing",
            f"{module} is quantised but has no {' nor '.join(missing)}",
            "quantise again, or fetch the file that holds it",
        )
    scale = tensors.get(f"{module}.weight_scale")
    packed = tensors.get(f"{module}.weight_packed") or tensors.get(f"{module}.weight")
    if layout != "fp8" and scale is not None and packed is not None:
        expected = (packed.shape[0], packed.shape[1] * 2 // BLOCK)
        if scale.shape != expected:
            yield Problem(
                "error",
                "scale-shape",
                f"{module}.weight_scale is {list(scale.shape)}; the weight needs {list(expected)}",
                "quantise again with blocks of 16",
            )


def scale_values(checkpoint: Checkpoint, modules: Mapping[str, str]) -> Iterator[Problem]:
    """Scales that no kernel takes, and global scales that differ inside a fused projection."""
    parts = ("weight_scale", "weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale")
    globals_: dict[str, float] = {}
    for module in modules:
        for part in parts:
            name = f"{module}.{part}"
            if name in checkpoint.tensors:
                values = checkpoint.weight(name).float()
                yield from _values(name, values)
                if part in ("weight_scale_2", "weight_global_scale") and values.numel() == 1:
                    globals_[module] = float(values)
    for module, scale in globals_.items():
        first = fused_group(module, globals_)[0]
        if scale != globals_[first]:
            yield Problem(
                "error",
                "global-scales-differ",
                f"{module} and {first} run as one product but have global scales {scale:.6g} and "
                f"{globals_[first]:.6g}; loaders take the larger and decode the other wrongly",
                "quantise the original again with paceline quantize",
            )


def _values(name: str, values: torch.Tensor) -> Iterator[Problem]:
    fault = None
    if not bool(values.isfinite().all()):
        fault = "NaN or infinite"
    elif bool((values < 0).any()):
        fault = "negative"
    elif values.numel() == 1 and not bool(values):
        fault = "zero"
    if fault:
        yield Problem("error", "scale-value", f"{name} holds {fault} values", "quantise the original again")

"""compressed-tensors' `nvfp4-pack-quantized` and nvidia-modelopt's layout: the same bytes, other names.

The packed codes and the block scales are identical; compressed-tensors stores the global scales as what to
divide by, with shape [1].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

_RENAMED = {
    "weight": "weight_packed",
    "weight_scale": "weight_scale",
    "weight_scale_2": "weight_global_scale",
    "input_scale": "input_global_scale",
}
_INVERTED = ("weight_scale_2", "input_scale")


def to_compressed(module: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One NVFP4 module's tensors by the last part of their names, from modelopt's layout."""
    return {
        _RENAMED[part]: (1.0 / tensor).reshape(1) if part in _INVERTED else tensor
        for part, tensor in module.items()
    }


def from_compressed(module: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One NVFP4 module's tensors by the last part of their names, into modelopt's layout."""
    parts = {theirs: ours for ours, theirs in _RENAMED.items()}
    return {
        parts[name]: (1.0 / tensor).reshape(()) if parts[name] in _INVERTED else tensor
        for name, tensor in module.items()
    }

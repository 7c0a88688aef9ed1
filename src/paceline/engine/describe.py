"""The resolved plan of a loaded engine: what was decided, what memory it takes, which kernels run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from paceline import kernels
from paceline.kernels.linear import make_linear
from paceline.kernels.linear.probe import cost_of_determinism
from paceline.kernels.nvfp4 import packed_product

if TYPE_CHECKING:
    from paceline.cache.tensors import CacheShape
    from paceline.engine.assemble import Assembled
    from paceline.engine.resolve import Resolved

PROBE_WEIGHTS = 2**24
"""Weights of the product that the cost of determinism is measured on, at most."""


def describe(parts: Assembled) -> dict[str, Any]:
    """Plain data, ready for JSON; all memory in bytes."""
    resolved = parts.resolved
    config, spec = resolved.config, resolved.spec
    speculative = config.speculative
    return {
        "model": {
            "folder": resolved.folder.name,
            "dtype": str(spec.dtype).removeprefix("torch."),
            "device": resolved.device.type,
            "quantization": spec.quantization,
            "quantized_weights": _held(resolved),
            "layers": spec.num_layers,
            "max_model_len": resolved.max_model_len,
        },
        "determinism": determinism(resolved),
        "speculation": {
            "method": speculative.method if speculative else None,
            "num_speculative_tokens": resolved.num_drafts,
            "prompt_lookup": resolved.looks_back,
        },
        "batch": {
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
        },
        "memory": {
            "num_blocks": parts.num_blocks,
            "num_slots": config.max_num_seqs + 1,
            "block_size": resolved.shape.block_size,
            **slot_bytes(resolved.shape),
        },
        "kernels": kernels.live(),
    }


def _held(resolved: Resolved) -> str | None:
    """What the weights of a quantised target are in memory: as asked for, where that is possible."""
    if resolved.spec.quantization is None:
        return None
    packed = resolved.keep_packed and packed_product(resolved.device, resolved.spec.dtype)
    return "packed" if packed else "dequantized"


def slot_bytes(shape: CacheShape) -> dict[str, Any]:
    """Bytes of a block and a slot, and what taking back rejected drafts costs beside the state."""
    state = shape.state_bytes_per_slot
    return {
        "bytes_per_block": shape.bytes_per_block,
        "bytes_per_slot": shape.bytes_per_slot,
        "state_bytes_per_slot": state,
        "history_bytes_per_slot": shape.history_bytes_per_slot,
        "rollback_bytes_per_slot": shape.rollback_bytes_per_slot,
        "rollback_share_of_state": shape.rollback_bytes_per_slot / state if state else None,
    }


def determinism(resolved: Resolved) -> dict[str, Any]:
    """Whether deterministic mode is on, which products it runs on, and what they cost (measured now).

    `cost` is the time of such a product over the time of torch's own, for one row of the feed-forward's
    shape: below 1 the mode costs nothing.
    """
    if not resolved.deterministic:
        return {"on": False, "products": None, "cost": None}
    spec = resolved.spec
    outs = max(1, min(2 * spec.intermediate_size, PROBE_WEIGHTS // spec.hidden_size))
    weight = torch.randn(outs, spec.hidden_size).to(resolved.device, spec.dtype)
    layer = make_linear(weight, deterministic=True)
    cost = cost_of_determinism(layer, spec.dtype, resolved.device)
    return {"on": True, "products": layer.kind, "cost": round(cost, 3)}

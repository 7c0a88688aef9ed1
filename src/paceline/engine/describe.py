"""The resolved plan of a loaded engine: what was decided, what memory it takes, which kernels run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline import kernels

if TYPE_CHECKING:
    from paceline.cache.tensors import CacheShape
    from paceline.engine.assemble import Assembled


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
            "layers": spec.num_layers,
            "max_model_len": resolved.max_model_len,
        },
        "deterministic": resolved.deterministic,
        "speculation": {
            "method": speculative.method if speculative else None,
            "num_speculative_tokens": resolved.num_drafts,
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

"""What a configuration will take, from headers and numbers alone: no weight is loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import kernels
from paceline.cache.memory import derive_num_blocks, memory_budget
from paceline.engine.assemble import CACHE_SHARE
from paceline.engine.describe import slot_bytes
from paceline.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from paceline.engine.resolve import Resolved

MTP = "mtp."


def forecast(resolved: Resolved) -> dict[str, Any]:
    """The plan of an engine that is not loaded yet: plain data, ready for JSON, all memory in bytes.

    `workspace` is an estimate (the largest step's activations and logits); everything else is exact, given
    the memory that is free now.
    """
    config, spec = resolved.config, resolved.spec
    return {
        "model": {
            "folder": resolved.folder.name,
            "dtype": str(spec.dtype).removeprefix("torch."),
            "device": resolved.device.type,
            "layers": spec.num_layers,
            "max_model_len": resolved.max_model_len,
        },
        "deterministic": resolved.deterministic,
        "batch": {
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
        },
        "drafts": draft_rule(resolved),
        "memory": _memory(resolved),
        "kernels": kernels.live(resolved.device.type),
    }


def draft_rule(resolved: Resolved) -> dict[str, Any]:
    """How long drafts are, and when they are shorter."""
    speculative = resolved.config.speculative
    if speculative is None:
        return {"method": None, "num_speculative_tokens": 0, "rule": "nothing is drafted"}
    n = resolved.num_drafts
    rule = (
        f"every verification holds {n} drafts; fewer where the answer's last tokens, the free KV blocks or "
        "the request itself leave room for fewer"
    )
    if speculative.method == "ngram":
        rule += ", or where the text so far suggests fewer"
    return {"method": speculative.method, "num_speculative_tokens": n, "rule": rule}


def _memory(resolved: Resolved) -> dict[str, Any]:
    config, shape = resolved.config, resolved.shape
    weights, head, drafter = _weights(resolved)
    loaded = weights + head + drafter
    free = memory_budget(resolved.device, share=1.0)
    checkpoints = resolved.num_checkpoints * shape.bytes_per_slot
    blocks = config.cache.num_blocks or derive_num_blocks(
        shape,
        max_num_seqs=config.max_num_seqs,
        max_model_len=resolved.positions,
        budget_bytes=int(_share(resolved) * max(0, free - loaded)) - checkpoints,
    )
    parts = {
        "weights": weights,
        "mtp_head": head,
        "drafter": drafter,
        "kv_blocks": blocks * shape.bytes_per_block,
        "recurrent_slots": (config.max_num_seqs + 1) * shape.bytes_per_slot,
        "checkpoints": checkpoints,
        "workspace": _workspace(resolved),
    }
    return {
        **parts,
        "total": sum(parts.values()),
        "free_now": free,
        "num_blocks": blocks,
        "block_size": shape.block_size,
        "num_slots": config.max_num_seqs + 1,
        "num_checkpoints": resolved.num_checkpoints,
        **slot_bytes(shape),
    }


def _share(resolved: Resolved) -> float:
    wanted = resolved.config.cache.gpu_memory_utilization
    kind = resolved.device.type
    return wanted if wanted is not None and kind == "cuda" else CACHE_SHARE[kind]


def _weights(resolved: Resolved) -> tuple[int, int, int]:
    """Bytes of the target, of its multi-token head and of the drafter, as far as they are used."""
    size = resolved.spec.dtype.itemsize
    counts = _counts(resolved.folder)
    head = sum(count for name, count in counts.items() if name.startswith(MTP))
    target = sum(count for name, count in counts.items() if ".visual." not in name) - head
    drafter = sum(_counts(resolved.drafter_folder).values()) if resolved.drafter_folder else 0
    return target * size, (head * size if resolved.mtp else 0), drafter * size


def _counts(folder: Path) -> dict[str, int]:
    """Elements of every tensor in a folder."""
    return {name: math.prod(info.shape) for name, info in Checkpoint.open(folder).tensors.items()}


def _workspace(resolved: Resolved) -> int:
    spec, config = resolved.spec, resolved.config
    rows = config.max_num_batched_tokens
    activations = rows * (3 * spec.hidden_size + 3 * spec.intermediate_size) * spec.dtype.itemsize
    logit_rows = config.max_num_seqs * (1 + resolved.num_drafts)
    return activations + 2 * logit_rows * spec.vocab_size * 4

"""What a configuration will take, from headers and numbers alone: no weight is loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import kernels
from paceline.cache.memory import derive_num_blocks, memory_budget, utilization_budget
from paceline.engine.assemble import CACHE_SHARE
from paceline.engine.describe import slot_bytes
from paceline.errors import CapacityError
from paceline.kernels.nvfp4 import packed_product
from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import QuantizedCheckpoint, as_plain

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
    if resolved.looks_back:
        rule += "; where the text once ended as now, they follow what stood behind while that is likely"
    return {"method": speculative.method, "num_speculative_tokens": n, "rule": rule}


def _memory(resolved: Resolved) -> dict[str, Any]:
    config, shape = resolved.config, resolved.shape
    weights, head, drafter = _weights(resolved)
    loaded = weights + head + drafter
    free = memory_budget(resolved.device, share=1.0)
    checkpoints = resolved.num_checkpoints * shape.bytes_per_slot
    blocks, shortage = _blocks(resolved, _budget(resolved, free, loaded) - checkpoints)
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
        "shortage": shortage,
        "num_blocks": blocks,
        "block_size": shape.block_size,
        "num_slots": config.max_num_seqs + 1,
        "num_checkpoints": resolved.num_checkpoints,
        **slot_bytes(shape),
    }


def _blocks(resolved: Resolved, budget: int) -> tuple[int, str | None]:
    """KV blocks, and why they do not fit; then the two that an engine needs at the least are counted."""
    if resolved.config.cache.num_blocks:
        return resolved.config.cache.num_blocks, None
    try:
        blocks = derive_num_blocks(
            resolved.shape,
            max_num_seqs=resolved.config.max_num_seqs,
            max_model_len=resolved.positions,
            budget_bytes=budget,
        )
    except CapacityError as error:
        return 2, str(error)
    return blocks, None


def _budget(resolved: Resolved, free: int, loaded: int) -> int:
    """Bytes for the cache once `loaded` is taken of what is `free` now, as `assemble` will find them."""
    wanted = resolved.config.cache.gpu_memory_utilization
    if wanted is not None and resolved.device.type == "cuda":
        return max(0, utilization_budget(resolved.device, wanted) - loaded)
    return int(CACHE_SHARE[resolved.device.type] * max(0, free - loaded))


def _weights(resolved: Resolved) -> tuple[int, int, int]:
    """Bytes of the target, of its multi-token head and of the drafter, as far as they are used."""
    sizes = _sizes(resolved.folder, resolved)
    head = sum(size for name, size in sizes.items() if name.startswith(MTP))
    target = sum(size for name, size in sizes.items() if ".visual." not in name) - head
    drafter = sum(_sizes(resolved.drafter_folder, resolved).values()) if resolved.drafter_folder else 0
    return target, (head if resolved.mtp else 0), drafter


def _sizes(folder: Path, resolved: Resolved) -> dict[str, int]:
    """Bytes of every weight of a folder once it is loaded: decoded, or in 4 bits where they stay so."""
    checkpoint = as_plain(Checkpoint.open(folder))
    itemsize = resolved.spec.dtype.itemsize
    sizes = {name: math.prod(info.shape) * itemsize for name, info in checkpoint.tensors.items()}
    packed = resolved.keep_packed and packed_product(resolved.device, resolved.spec.dtype)
    if packed and isinstance(checkpoint, QuantizedCheckpoint):
        for name, module in checkpoint.modules.items():
            if module.kind == "nvfp4":  # two codes a byte, and a scale of one byte for 16
                count = math.prod(checkpoint.tensors[name].shape)
                sizes[name] = count // 2 + count // 16
    return sizes


def _workspace(resolved: Resolved) -> int:
    spec, config = resolved.spec, resolved.config
    rows = config.max_num_batched_tokens
    activations = rows * (3 * spec.hidden_size + 3 * spec.intermediate_size) * spec.dtype.itemsize
    logit_rows = config.max_num_seqs * (1 + resolved.num_drafts)
    return activations + 2 * logit_rows * spec.vocab_size * 4

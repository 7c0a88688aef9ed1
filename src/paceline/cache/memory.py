"""How many blocks fit: from the models' numbers and the memory that is free."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from paceline.cache.base import blocks_for
from paceline.cache.tensors import CacheShape
from paceline.errors import CapacityError


def derive_num_blocks(shape: CacheShape, *, max_num_seqs: int, max_model_len: int, budget_bytes: int) -> int:
    """Blocks, null block included: enough for every sequence at full length, as far as the budget goes.

    The budget is for slots and blocks together. Raises `CapacityError` when it leaves no room for a single
    block.
    """
    wanted = max_num_seqs * blocks_for(max_model_len, shape.block_size) + 1
    left = budget_bytes - (max_num_seqs + 1) * shape.bytes_per_slot
    affordable = left // max(shape.bytes_per_block, 1)
    if affordable < 2:
        raise CapacityError(
            f"{max(budget_bytes, 0) / 2**30:.2f} GiB of memory are left for the cache and do not hold "
            f"{max_num_seqs} slots of {shape.bytes_per_slot / 2**20:.1f} MiB and two KV blocks: lower "
            "max_num_seqs or free memory"
        )
    return min(wanted, affordable)


def memory_budget(device: torch.device | str, *, share: float, reserve_bytes: int = 0) -> int:
    """Bytes that the cache may take: `share` of what is free now, less what others still need."""
    device = torch.device(device)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_host_bytes()
    return max(0, int(free * share) - reserve_bytes)


def total_memory(device: torch.device | str) -> int:
    """Bytes of a GPU, or of the machine, bounded by a container's limit; free or not."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read_int("/sys/fs/cgroup/memory.max")
    return total if limit is None else min(total, limit)


def utilization_budget(device: torch.device, utilization: float) -> int:
    """Bytes left for the cache when everything on a GPU may take `utilization` of its memory."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(total * utilization) - (total - free))


def _free_host_bytes() -> int:
    """Memory that this process can still get: the machine's, bounded by a container's limit."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(_read_pairs("/proc/meminfo"))
    free = fields.get("MemAvailable:", free // 1024) * 1024
    limit, used = _read_int("/sys/fs/cgroup/memory.max"), _read_int("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        free = min(free, limit - used)
    return max(free, 0)


def _read_pairs(path: str) -> Iterator[tuple[str, int]]:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                words = line.split()
                if len(words) > 1 and words[1].isdigit():
                    yield words[0], int(words[1])
    except OSError:
        return


def _read_int(path: str) -> int | None:
    """The number in a one-line file; None when there is no such file, or no number ("max": unlimited)."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

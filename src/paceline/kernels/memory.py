"""Weights in huge pages: a decode step streams all of them, and small pages cost a quarter of the speed."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch

HUGE_PAGE = 2 << 20
ARENA = 32 << 20
ALIGN = 64  # a cache line


class Arena:
    """Hands out pieces of large mappings that ask for huge pages; a mapping lives while a piece does."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised (zero) tensor that starts on a cache line."""
        size = math.prod(shape) * dtype.itemsize
        if self._used + size > self._buffer.numel():
            self._buffer, self._used = _mapping(max(size, ARENA)), 0
        piece = self._buffer[self._used : self._used + size]
        self._used += -(-size // ALIGN) * ALIGN
        return piece.view(dtype).view(shape)


def _mapping(size: int) -> torch.Tensor:
    size = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a Linux without huge pages: the mapping serves as it is
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + size]


WEIGHTS = Arena()

"""Which captured decode step serves which windows (CUDA)."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from typing import TYPE_CHECKING, Literal

import torch

from paceline.cache.base import blocks_for
from paceline.engine.bucket import BucketSize, DecodeBucket
from paceline.engine.step import StepParts

if TYPE_CHECKING:
    from paceline.engine.plan import Window
    from paceline.speculate.sampler import SamplingPlan

MOST_GRAPHS = 24
"""Graphs kept at once; the one used longest ago goes first."""


class BucketCache:
    """Captures a graph for each bucket size and sampling plan at first use, and finds it again.

    Buckets double in sequences and in blocks, so that a conversation that grows meets few new ones.
    """

    def __init__(
        self,
        parts: StepParts,
        *,
        block_size: int,
        num_drafts: int,
        device: torch.device,
        draft_method: Literal["greedy", "coupled"],
    ):
        self._parts, self._block_size, self._num_drafts = parts, block_size, num_drafts
        self._device, self._draft_method = device, draft_method
        self._kept: dict[tuple[BucketSize, SamplingPlan], DecodeBucket] = {}
        # One pool for all: graphs run one at a time, and what one leaves is read before the next runs.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def find(self, windows: ListLike[Window]) -> DecodeBucket:
        """The bucket for these windows, captured if it is new; it is not loaded yet."""
        return self.of(self._size(windows))

    def of(self, size: BucketSize) -> DecodeBucket:
        """The bucket of this size for what the live requests sample, captured if it is new."""
        key = (size, self._parts.sampler.plan)
        bucket = self._kept.pop(key, None)
        if bucket is None:
            if len(self._kept) >= MOST_GRAPHS:
                del self._kept[next(iter(self._kept))]
            bucket = DecodeBucket(self._parts, size, self._device, self._draft_method, self._pool)
            bucket.capture()
        self._kept[key] = bucket  # newest last
        return bucket

    def _size(self, windows: ListLike[Window]) -> BucketSize:
        plain = all(w.rows == 1 for w in windows)
        rows = 1 if plain else self._num_drafts + 1
        proposer = self._parts.proposer
        span = proposer.draft_span if proposer and not plain else 0
        reach = max(w.sequence.length for w in windows) + max(rows + 1, span)
        owned = max(len(w.sequence.blocks) for w in windows)  # scratch of a wider window may still be there
        return BucketSize(
            num_seqs=_power_of_two(len(windows)),
            max_rows=rows,
            max_blocks=_power_of_two(max(blocks_for(reach, self._block_size), owned)),
            block_size=self._block_size,
        )


def _power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()

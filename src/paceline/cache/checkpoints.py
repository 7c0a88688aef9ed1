"""Recurrent states at prompt boundaries, kept so that a known prefix brings its state back as well as its
blocks.

A checkpoint at length c holds, in a state slot of its own, the state after exactly c tokens and the conv
inputs behind it, and the target's hidden row of position c - 1, from which a multi-token head makes its row
at position c. It is found by the content hash of the block that ends at c. The one that was used longest ago
is given up first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from paceline.cache.prefix import BlockHash
from paceline.kernels import gated_delta
from paceline.kernels.gated_delta.base import DeltaState


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One kept state."""

    slot: int
    hidden: torch.Tensor
    """[H] the target's post-norm hidden of the last token."""


class CheckpointStore:
    """Owns the state slots `first_slot` .. `first_slot + count - 1`; nobody else writes them."""

    def __init__(self, delta: list[DeltaState], first_slot: int, count: int) -> None:
        self._delta = delta
        self._free = list(range(first_slot + count - 1, first_slot - 1, -1))
        self._kept: OrderedDict[BlockHash, Checkpoint] = OrderedDict()

    def __contains__(self, content: BlockHash) -> bool:
        return content in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def save(self, content: BlockHash, slot: int, hidden: torch.Tensor) -> None:
        """Keep the state in `slot`, which has no pending rows; a known content is only marked as used."""
        if content in self._kept:
            self._kept.move_to_end(content)
            return
        if not self._free:
            if not self._kept:  # no slot was given to the store
                return
            _, oldest = self._kept.popitem(last=False)
            self._free.append(oldest.slot)
        target = self._free.pop()
        self._copy(slot, target)
        self._kept[content] = Checkpoint(target, hidden.clone())

    def load(self, content: BlockHash, slot: int) -> Checkpoint:
        """Copy a kept state into `slot` and mark it as used."""
        checkpoint = self._kept[content]
        self._kept.move_to_end(content)
        self._copy(checkpoint.slot, slot)
        return checkpoint

    def clear(self) -> None:
        """Keep no state any more."""
        self._free.extend(checkpoint.slot for checkpoint in self._kept.values())
        self._kept.clear()

    def _copy(self, source: int, target: int) -> None:
        if not self._delta:
            return
        index = torch.tensor([source, target, 0], dtype=torch.int64).to(self._delta[0].state.device)
        for state in self._delta:
            gated_delta.commit(state, index[:1], index[1:2], index[2:])

"""Recurrent states at block boundaries, kept so that a known prefix brings its state back as well as its
blocks.

A checkpoint at length c holds, in a state slot of its own, a copy of a running sequence's slot as it was when
c was reached: the state, and the first rows of the window that led from there to c. `load` replays those
rows, exactly up to c, into the slot of whoever goes on from it. A save is therefore a plain copy, which waits
for nothing and costs the same wherever in a window a boundary lies. Beside it lies the target's hidden row of
position c - 1, from which a multi-token head makes its row at position c.

A checkpoint is found by the content hash of the block that ends at c. The number of slots is the budget: the
checkpoint that was used longest ago is given up first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from paceline.cache.prefix import BlockHash
from paceline.cache.tensors import CacheTensors
from paceline.kernels import gated_delta


@dataclass(slots=True, eq=False)
class Checkpoint:
    """One kept state."""

    slot: int
    rows: int
    """Rows of the slot's window that lead from the stored state to the checkpoint's length."""
    hidden: torch.Tensor
    """[H] the target's post-norm hidden of the last token."""
    claims: int = 1
    """Who left it or went on from it, less those who have discarded it since."""


class CheckpointStore:
    """Owns the state slots `first_slot` .. `first_slot + count - 1`; nobody else writes them."""

    def __init__(self, tensors: CacheTensors, first_slot: int, count: int) -> None:
        assert count >= 1, "a store needs a slot"
        self._delta, self._stacks = tensors.target.delta, tensors.slot_stacks
        self._slots = range(first_slot, first_slot + count)
        self._free = list(reversed(self._slots))
        self._kept: OrderedDict[BlockHash, Checkpoint] = OrderedDict()

    def __contains__(self, content: BlockHash) -> bool:
        return content in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def save(self, content: BlockHash, slot: int, hidden: torch.Tensor, rows: int = 0) -> None:
        """Keep the state in `slot` with the first `rows` rows of its window replayed, those that are
        committed up to the checkpoint's length; `hidden` [H]. A known content is only marked as used."""
        if content in self._kept:
            self._touch(content)
            return
        if not self._free:
            _, oldest = self._kept.popitem(last=False)
            self._free.append(oldest.slot)
        target = self._free.pop()
        self._copy(slot, target)
        self._kept[content] = Checkpoint(target, rows, hidden.clone())

    def load(self, content: BlockHash, slot: int) -> Checkpoint:
        """Bring a kept state into `slot`, where nothing is pending then, and mark it as used."""
        checkpoint = self._touch(content)
        if not checkpoint.rows:
            self._copy(checkpoint.slot, slot)
        elif self._delta:
            numbers = torch.tensor([checkpoint.slot, slot, checkpoint.rows], dtype=torch.int64)
            index = numbers.to(self._delta[0].state.device)
            for state in self._delta:
                gated_delta.commit(state, index[:1], index[1:2], index[2:])
        return checkpoint

    def discard(self, content: BlockHash) -> None:
        """Take back the claim of one who saved it; what nobody claims is given up. It may be gone already."""
        checkpoint = self._kept.get(content)
        if checkpoint is None:
            return
        checkpoint.claims -= 1
        if not checkpoint.claims:
            del self._kept[content]
            self._free.append(checkpoint.slot)

    def clear(self) -> None:
        """Keep no state any more."""
        self._free.extend(checkpoint.slot for checkpoint in self._kept.values())
        self._kept.clear()

    def check(self) -> None:
        """Assert that every slot is free or holds one checkpoint."""
        held = (checkpoint.slot for checkpoint in self._kept.values())
        assert sorted([*self._free, *held]) == list(self._slots), "a slot leaked or is held twice"

    def _touch(self, content: BlockHash) -> Checkpoint:
        self._kept.move_to_end(content)
        checkpoint = self._kept[content]
        checkpoint.claims += 1
        return checkpoint

    def _copy(self, source: int, target: int) -> None:
        for stack in self._stacks:  # all layers at once
            stack[:, target].copy_(stack[:, source])

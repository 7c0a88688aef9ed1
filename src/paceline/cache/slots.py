"""The pool of recurrent state slots."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.cache.base import NULL_SLOT


class SlotPool:
    """Ids 1..num_slots-1, each with at most one owner; id 0 is the null slot and never handed out."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 2, "a pool needs the null slot and one more"
        self.num_slots = num_slots
        self._free = list(
            range(num_slots - 1, 0, -1)
        )  # a stack: low ids first, so that a small batch is dense

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def allocate(self) -> int:
        """Hand out a slot with whatever its last owner left; the caller has looked at `num_free`."""
        assert self._free, "no slot is free"
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Take a slot back."""
        assert 0 < slot < self.num_slots and slot not in self._free, f"slot {slot} is not owned"
        self._free.append(slot)

    def check(self, owned: Iterable[int]) -> None:
        """Assert that free slots and `owned` ones are all slots, each once."""
        assert sorted([*self._free, *owned]) == list(range(1, self.num_slots)), (
            "a slot leaked or has two owners"
        )
        assert NULL_SLOT not in self._free, "the null slot is free"

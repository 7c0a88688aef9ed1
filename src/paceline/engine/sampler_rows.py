"""Which sequence has which row of the sampler: opened with its slot, closed when it leaves it, for
whatever reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.engine.sequence import Sequence
    from paceline.speculate.sampler import Sampler, SamplingRequest


class SamplerRows:
    """The sampler's rows of running sequences. A row is a function of the request and its output so far."""

    def __init__(self, sampler: Sampler, describe: Callable[[Sequence], SamplingRequest]):
        self._sampler, self._describe = sampler, describe
        self._slots: dict[Sequence, int] = {}
        self._owners: dict[int, Sequence] = {}  # the same, by slot

    def check(self, sequence: Sequence) -> None:
        """Raise `RequestError` for parameters that this model cannot sample with."""
        self._describe(sequence).check(self._sampler.vocab)

    def open(self, sequence: Sequence) -> None:
        """Write the row of a sequence that has just got its slot.

        Whoever had the row before has lost the slot since: within one plan a sequence may fail, and another
        take its slot, before anyone could close the row.
        """
        assert sequence not in self._slots, "a sequence has one row"
        other = self._owners.get(sequence.slot)
        if other is not None:
            assert other.slot != sequence.slot, "two running sequences share a slot"
            self.close(other)
        self._sampler.add(sequence.slot, self._describe(sequence), sequence.output_ids)
        self._slots[sequence] = sequence.slot
        self._owners[sequence.slot] = sequence

    def close(self, sequence: Sequence) -> None:
        """Free the row, if there is one; the sequence may have lost its slot already."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            del self._owners[slot]
            self._sampler.remove(slot)

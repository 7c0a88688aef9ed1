"""The slot pool."""

from __future__ import annotations

import pytest

from paceline.cache.slots import SlotPool


def test_slots_have_one_owner_and_zero_is_null() -> None:
    pool = SlotPool(4)
    owned = [pool.allocate() for _ in range(3)]
    assert owned == [1, 2, 3] and pool.num_free == 0
    pool.check(owned)
    with pytest.raises(AssertionError, match="no slot is free"):
        pool.allocate()
    pool.release(2)
    pool.check([1, 3])
    assert pool.allocate() == 2


@pytest.mark.parametrize("slot", [0, 2, 4])
def test_releasing_what_is_not_owned_is_a_fault(slot: int) -> None:
    pool = SlotPool(4)
    pool.allocate()
    with pytest.raises(AssertionError, match="not owned"):
        pool.release(slot)


def test_check_sees_a_leak_and_a_double_owner() -> None:
    pool = SlotPool(3)
    slot = pool.allocate()
    for owners in ([], [slot, slot]):
        with pytest.raises(AssertionError, match="leaked"):
            pool.check(owners)

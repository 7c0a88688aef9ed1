"""Kept states: replayed exactly up to their length, within a budget, without a slot lost."""

from __future__ import annotations

import random

import pytest
import torch

from paceline.cache.checkpoints import CheckpointStore
from paceline.cache.tensors import CacheTensors
from paceline.kernels import gated_delta
from tests.cache.shapes import tiny_shape

HIDDEN = torch.arange(16.0)


def filled(slots: int) -> CacheTensors:
    """A cache with plausible numbers in every slot."""
    tensors = CacheTensors.allocate(tiny_shape(), num_blocks=4, num_slots=slots, device="cpu")
    source = torch.Generator().manual_seed(3)
    for stack in tensors.slot_stacks:
        stack.copy_(torch.rand(stack.shape, generator=source))
    return tensors


def state_of(tensors: CacheTensors, slot: int) -> list[torch.Tensor]:
    """What a sequence with nothing pending has in its slot."""
    parts = [(d.state[slot], d.conv_rows[slot, : d.history]) for d in tensors.target.delta]
    return [part.clone() for pair in parts for part in pair]


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
def test_a_checkpoint_within_a_window_replays_exactly_up_to_its_length(rows: int) -> None:
    tensors = filled(slots=6)
    store = CheckpointStore(tensors, first_slot=4, count=2)
    count = torch.tensor([rows])
    for delta in tensors.target.delta:
        gated_delta.commit(delta, torch.tensor([1]), torch.tensor([3]), count)
    wanted = state_of(tensors, 3)

    store.save(b"c", 1, HIDDEN, rows)
    for stack in tensors.slot_stacks:  # whose state it was goes on, and rows of its window were rejected
        stack[:, 1] = float("nan")
    found = store.load(b"c", 2)
    assert torch.equal(found.hidden, HIDDEN)
    for got, expected in zip(state_of(tensors, 2), wanted, strict=True):
        assert torch.equal(got, expected)
    store.load(b"c", 1)  # it serves any number of sequences
    assert all(map(torch.equal, state_of(tensors, 1), wanted))


def test_the_one_used_longest_ago_is_given_up() -> None:
    store = CheckpointStore(filled(slots=8), first_slot=4, count=3)
    for content in (b"a", b"b", b"c"):
        store.save(content, 1, HIDDEN)
    store.load(b"a", 2)
    store.save(b"b", 1, HIDDEN)  # known: used again, not kept twice
    store.save(b"d", 1, HIDDEN)
    assert len(store) == 3 and [c in store for c in (b"a", b"b", b"c", b"d")] == [True, True, False, True]
    store.check()
    store.clear()
    assert len(store) == 0 and b"a" not in store
    store.check()


def test_what_an_answer_has_passed_goes_unless_someone_else_needs_it() -> None:
    store = CheckpointStore(filled(slots=8), first_slot=4, count=4)
    store.save(b"mine", 1, HIDDEN)
    store.discard(b"mine")
    assert b"mine" not in store
    store.discard(b"mine")  # given up by the budget meanwhile: nothing happens
    store.save(b"resumed", 1, HIDDEN)
    store.load(b"resumed", 2)
    store.discard(b"resumed")
    assert b"resumed" in store, "a prompt went on from it"
    for slot in (1, 2):
        store.save(b"twins", slot, HIDDEN)
    store.discard(b"twins")
    assert b"twins" in store
    store.discard(b"twins")
    assert b"twins" not in store
    store.check()


def test_no_slot_is_lost_whatever_happens() -> None:
    tensors = filled(slots=9)
    store, source = CheckpointStore(tensors, first_slot=4, count=5), random.Random(2)
    untouched = [stack[:, [0, 3]].clone() for stack in tensors.slot_stacks]
    for _ in range(300):
        content = bytes([source.randrange(9)])
        action = source.choice(["save", "save", "load", "discard"])
        if action == "save":
            store.save(content, 1, HIDDEN, source.randrange(4))
        elif action == "discard":
            store.discard(content)
        elif content in store:
            store.load(content, 2)
        store.check()
        assert len(store) <= 5
    assert all(map(torch.equal, untouched, [stack[:, [0, 3]] for stack in tensors.slot_stacks]))

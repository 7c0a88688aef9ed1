"""The way to host memory over real tensors: what is copied, what the engine adds, what is forgotten."""

from __future__ import annotations

import pytest
import torch

from paceline.cache.swap import HostSwap
from paceline.cache.tensors import CacheTensors
from paceline.engine.sequence import Sequence
from paceline.engine.swapper import SequenceSwapper
from paceline.errors import CapacityError
from tests.cache.shapes import tiny_shape
from tests.engine.sequences import decoding


class Engine:
    """What an engine keeps by slot besides the cache, and a swapper over a poisoned cache."""

    def __init__(self, lookahead: int, limit: int = 2**30) -> None:
        self.tensors = CacheTensors.allocate(tiny_shape(), num_blocks=9, num_slots=4, device="cpu")
        self.host = HostSwap(self.tensors, limit)
        self.rows = {1: "row of slot 1"}
        self.swapper = SequenceSwapper(
            self.host,
            block_size=8,
            lookahead=lookahead,
            export=lambda s: self.rows[s.slot],
            import_=lambda s, state: self.rows.__setitem__(s.slot, state),
            leave=lambda s: self.rows.pop(s.slot),
        )

    def move(self, sequence: Sequence, blocks: list[int], slot: int) -> None:
        self.swapper.save(sequence)
        assert self.host.used_bytes and not self.rows
        sequence.slot = slot
        sequence.set_blocks(blocks)
        self.swapper.restore(sequence)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("length", [15, 16, 17])
def test_every_valid_position_moves(length: int, lookahead: int) -> None:
    """At length 16 a head's row of the anchor lies in a block of which the target has nothing yet."""
    engine = Engine(lookahead)
    assert engine.tensors.mtp is not None
    head, target = engine.tensors.mtp[0], engine.tensors.target.kv[0][1]
    sequence = decoding(length, [1, 2, 3], slot=1, pending=2)
    for position in range(length + lookahead):
        head[[1, 2, 3][position // 8], position % 8] = position
        target[[1, 2, 3][position // 8], position % 8] = -position
    engine.move(sequence, [6, 5, 4], slot=3)
    for position in range(length + lookahead):
        block = sequence.blocks[position // 8]
        assert bool((head[block, position % 8] == position).all())
        assert bool((target[block, position % 8] == -position).all())
    assert engine.rows == {3: "row of slot 1"} and engine.host.used_bytes == 0
    assert sequence.pending == 2


def test_a_full_host_leaves_everything_as_it_was() -> None:
    engine = Engine(lookahead=0, limit=10)
    with pytest.raises(CapacityError):
        engine.swapper.save(decoding(9, [1, 2], slot=1))
    assert engine.rows == {1: "row of slot 1"} and engine.host.used_bytes == 0


def test_dropped_copies_free_their_memory() -> None:
    engine = Engine(lookahead=0)
    sequence = decoding(9, [1, 2], slot=1)
    engine.swapper.save(sequence)
    engine.swapper.drop(sequence)
    assert engine.host.used_bytes == 0


def test_the_state_moves_with_its_rows() -> None:
    engine = Engine(lookahead=0)
    states = engine.tensors.target.delta
    for number, state in enumerate(states):
        for part in state.tensors():
            part[1] = number + 1
    engine.move(decoding(9, [1, 2], slot=1), [3, 4], slot=2)
    for number, state in enumerate(states):
        assert all(bool(torch.all(part[2] == number + 1)) for part in state.tensors())

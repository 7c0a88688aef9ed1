"""The block pool: reference counts, sharing, content hashes, the order of eviction."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.cache.base import blocks_for
from paceline.cache.blocks import BlockPool
from paceline.cache.prefix import Written, block_hash, chain_hashes, common_blocks


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_blocks_for(positions: int, blocks: int) -> None:
    assert blocks_for(positions, 8) == blocks


def test_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5, 8)
    assert pool.num_usable == 4
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(AssertionError, match="0 free"):
        pool.allocate(1)


def test_a_shared_block_stays_until_the_last_holder_lets_go() -> None:
    pool = BlockPool(4, 8)
    mine = pool.allocate(2)
    pool.ref(mine[:1])
    pool.unref(mine)
    assert pool.refs(mine[0]) == 1 and pool.num_free == 2
    pool.check([mine[:1]])
    pool.unref(mine[:1])
    pool.check([])
    with pytest.raises(AssertionError, match="more often"):
        pool.unref(mine[:1])


def test_a_block_that_nobody_holds_cannot_be_shared_or_sealed() -> None:
    pool = BlockPool(4, 8)
    with pytest.raises(AssertionError, match="not held"):
        pool.ref([1])
    with pytest.raises(AssertionError, match="sealed"):
        pool.seal(1, b"content")


def test_sealed_blocks_are_evicted_last_and_the_tail_of_a_prefix_before_its_head() -> None:
    pool = BlockPool(6, 8)
    table = pool.allocate(5)
    hashes = chain_hashes(range(24), 8)
    for block, content in zip(table, hashes, strict=False):
        pool.seal(block, content)
    pool.unref(table)
    assert pool.allocate(2) == [table[4], table[3]]  # never sealed
    assert pool.allocate(1) == [table[2]]  # sealed, the prefix's tail
    assert pool.acquire(hashes[2]) is None
    assert pool.acquire(hashes[0]) == table[0]
    pool.check([[table[4], table[3]], [table[2]], [table[0]]])


def test_acquire_shares_a_held_block() -> None:
    pool = BlockPool(3, 8)
    (block,) = pool.allocate(1)
    pool.seal(block, b"x")
    assert pool.acquire(b"x") == block
    assert pool.refs(block) == 2


def test_the_first_block_of_a_content_stays() -> None:
    pool = BlockPool(3, 8)
    first, second = pool.allocate(2)
    pool.seal(first, b"x")
    pool.seal(second, b"x")
    assert pool.acquire(b"x") == first
    pool.check([[first, second], [first]])


def test_sealing_twice_is_harmless_and_other_content_is_a_bug() -> None:
    pool = BlockPool(3, 8)
    (block,) = pool.allocate(1)
    pool.seal(block, b"x")
    pool.seal(block, b"x")
    with pytest.raises(AssertionError, match="other content"):
        pool.seal(block, b"y")
    pool.check([[block]])


def test_hashes_depend_on_the_whole_prefix() -> None:
    a, b = list(range(16)), [99, *range(1, 16)]
    assert len(chain_hashes([*a, 1], 8)) == 2
    assert chain_hashes(a, 8)[1] == block_hash(block_hash(b"", a[:8]), a[8:])
    assert not set(chain_hashes(a, 8)) & set(chain_hashes(b, 8))
    assert chain_hashes(a[8:], 8, parent=chain_hashes(a, 8)[0]) == chain_hashes(a, 8)[1:]
    assert chain_hashes([1, 2], 8) == []
    apart = chain_hashes(a, 8, written=Written.PREFILL)
    assert not set(apart) & set(chain_hashes(a, 8)), "how a block was written is part of its hash"
    assert block_hash(b"", [1, 2]).hex() == "f59df9f51bfcb52f7ae49756810ec78b", "stored hashes would be void"


def test_chains_agree_up_to_where_their_tokens_part() -> None:
    chain = chain_hashes(range(80), 8)
    for size in (0, 1, 7, 8, 9, 40, 79, 80):
        other = chain_hashes([*range(size), *range(500, 600)], 8)
        assert common_blocks(chain, other) == common_blocks(other, chain) == size // 8
    assert common_blocks(chain, []) == 0


class PoolMachine(RuleBasedStateMachine):
    """Random holders, some of whom share and seal."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9, 8)
        self.tables: list[list[int]] = []
        self.sealed: dict[int, bytes] = {}
        self.counter = 0

    @rule(count=st.integers(1, 8))
    def allocate(self, count: int) -> None:
        if count <= self.pool.num_free:
            table = self.pool.allocate(count)
            for block in table:
                self.sealed.pop(block, None)
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        part = table[: data.draw(st.integers(1, len(table)))]
        self.pool.ref(part)
        self.tables.append(list(part))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.unref(self.tables.pop(index))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        if block not in self.sealed:
            self.counter += 1
            self.sealed[block] = str(self.counter).encode()
            self.pool.seal(block, self.sealed[block])

    @precondition(lambda self: self.sealed)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.sealed)))
        assert self.pool.acquire(self.sealed[block]) == block
        self.tables.append([block])

    @invariant()
    def nothing_leaks(self) -> None:
        self.pool.check(self.tables)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_contents_can_be_forgotten_while_blocks_are_held():
    pool = BlockPool(6, 8)
    held, gone = pool.allocate(2), pool.allocate(1)
    for block, content in zip([*held, *gone], (b"a", b"b", b"c"), strict=True):
        pool.seal(block, content)
    pool.unref(gone)
    pool.forget_contents()
    assert not any(pool.knows(content) for content in (b"a", b"b", b"c"))
    pool.check([held])
    pool.seal(held[1], b"b")
    pool.unref(held)
    assert pool.knows(b"b") and pool.num_free == pool.num_usable
    pool.check([])

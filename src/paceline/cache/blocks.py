"""The pool of KV blocks: who holds which, and which one is handed out next."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from paceline.cache.base import NULL_BLOCK
from paceline.cache.prefix import BlockHash


class BlockPool:
    """Ids 1..num_blocks-1 counted by references; id 0 is the null block and never handed out.

    A full block may be sealed with the hash of its content. It can then be found by that hash, while it is
    held and after it was let go, until it is handed out again. Free blocks without a hash go first, sealed
    ones last and the longest unused of them first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks >= 2, "a pool needs the null block and one more"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._free: deque[int] = deque(range(1, num_blocks))
        self._free_sealed: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, BlockHash] = {}
        self._block_of: dict[BlockHash, int] = {}

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can hold in all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, sealed ones included."""
        return len(self._free) + len(self._free_sealed)

    def refs(self, block: int) -> int:
        """How many hold the block."""
        return self._refs[block]

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks with one reference each; the caller has looked at `num_free`."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        blocks = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def ref(self, blocks: Iterable[int]) -> None:
        """Hold blocks that someone else holds already."""
        for block in blocks:
            assert self._refs[block] > 0, f"block {block} is not held"
            self._refs[block] += 1

    def unref(self, blocks: Iterable[int]) -> None:
        """Let go of blocks; what nobody holds any more is free.

        Give a sequence's blocks in the order of its table: the tail of a prefix, which is of use only behind
        all that comes before it, is then evicted first.
        """
        for block in reversed(list(blocks)):
            assert self._refs[block] > 0, f"block {block} is let go more often than it is held"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if block in self._hash_of:
                    self._free_sealed[block] = None
                else:
                    self._free.append(block)

    def seal(self, block: int, content: BlockHash) -> None:
        """Make a held full block, every position of which is committed, findable by its content; if another
        block is already, that one stays. Sealing it twice is harmless."""
        assert self._refs[block] > 0, f"block {block} is not held and cannot be sealed"
        assert self._hash_of.get(block, content) == content, f"block {block} has other content already"
        if content not in self._block_of:
            self._hash_of[block] = content
            self._block_of[content] = block

    def knows(self, content: BlockHash) -> bool:
        """Whether a block of that content can be found."""
        return content in self._block_of

    def acquire(self, content: BlockHash) -> int | None:
        """Find a block by its content and hold it."""
        block = self._block_of.get(content)
        if block is not None:
            if self._refs[block] == 0:
                del self._free_sealed[block]
            self._refs[block] += 1
        return block

    def forget_contents(self) -> None:
        """Make no block findable any more; who holds one keeps it."""
        self._free.extend(self._free_sealed)
        for index in (self._free_sealed, self._hash_of, self._block_of):
            index.clear()

    def _evict(self) -> int:
        block, _ = self._free_sealed.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def check(self, holders: Iterable[Iterable[int]] | None = None) -> None:
        """Assert what must always hold; with `holders` (all block tables), also that nothing leaked."""
        free = [*self._free, *self._free_sealed]
        assert len(free) == len(set(free)), "a block is free twice"
        assert sorted(free) == [b for b in range(1, self.num_blocks) if self._refs[b] == 0], "free != unheld"
        assert self._refs[NULL_BLOCK] == 0, "the null block is held"
        assert not any(block in self._hash_of for block in self._free), "a sealed block sits among the plain"
        assert all(block in self._hash_of for block in self._free_sealed), (
            "a plain block sits among the sealed"
        )
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, (
            "the hash index disagrees with itself"
        )
        if holders is not None:
            counted = [0] * self.num_blocks
            for table in holders:
                for block in table:
                    counted[block] += 1
            assert counted == self._refs, "references disagree with the block tables"

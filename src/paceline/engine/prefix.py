"""Reuse of known beginnings: blocks and recurrent state together, so that speculation goes on as if all was
read.

Deterministic mode reuses what prompts wrote alone: KV, drafter KV and states come from the prompt's
arithmetic, cut at the same absolute positions in every request, so a hit gives the very bits that reading
would give. Outside it answers are reused as well, up to the last whole block, as their bits matter no more
than those of a prompt that was cut elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from paceline.cache.blocks import BlockPool
from paceline.cache.checkpoints import CheckpointStore
from paceline.cache.prefix import ROOT, BlockHash, Written, chain_hashes, common_blocks
from paceline.config.engine import PREFILL_CHUNK

if TYPE_CHECKING:
    from paceline.engine.sequence import Sequence
    from paceline.speculate.base import Proposer


@dataclass(slots=True)
class _Known:
    """What is remembered of a sequence that is not done."""

    hashes: list[BlockHash]
    """Of its full blocks: the prompt's from the start, the answer's as they fill."""
    sealed: int
    """Blocks that can be found by their content."""
    wanted: list[int] = field(default_factory=list)
    """Prompt lengths at which a checkpoint is to be kept, ascending."""
    tail: BlockHash | None = None
    """The answer's last checkpoint, if the next one takes its place."""


class PrefixReuse:
    """Finds the longest prefix that has both KV blocks and a checkpoint, and keeps what later requests can
    use.

    A model of attention alone needs no checkpoint (`store` None): its blocks are all there is to a prefix.

    Checkpoints are kept at the last boundaries before a prompt's end and at it; where prompts share blocks
    beyond their checkpoints (there the next request with that beginning finds one); outside deterministic
    mode at the last boundary that an answer has reached, which is where the next turn goes on; and every
    `interval` tokens, if given.
    """

    def __init__(
        self,
        blocks: BlockPool,
        store: CheckpointStore | None,
        proposer: Proposer | None,
        *,
        deterministic: bool,
        interval: int | None = None,
    ):
        self._blocks, self._store, self._proposer = blocks, store, proposer
        self._answers = not deterministic
        self._written = Written.PREFILL if deterministic else Written.ANYHOW
        self._unit = reuse_unit(blocks.block_size, deterministic)
        assert interval is None or interval % self._unit == 0, "checkpoints lie at boundaries"
        self._interval = interval
        self._known: dict[Sequence, _Known] = {}
        self.queried_tokens = 0
        """Prompt tokens of all admitted sequences."""
        self.hit_tokens = 0
        """Those of them that were not read again."""

    # -- prompts -------------------------------------------------------------------------------------------

    def admit(self, sequence: Sequence) -> None:
        """Give a new sequence the blocks of the longest usable prefix; the caller is about to give it the
        rest."""
        size, end = self._blocks.block_size, len(sequence.prompt_ids)
        hashes = chain_hashes(sequence.prompt_ids, size, written=self._written)
        matched = next((i for i, h in enumerate(hashes) if not self._blocks.knows(h)), len(hashes))
        # At least one token is read, for its logits.
        reach = self._boundary(min(matched * size, end - 1))
        hit = self._resumable(hashes, reach)
        blocks = [self._blocks.acquire(content) for content in hashes[: hit // size]]
        sequence.reuse([block for block in blocks if block is not None], hit)
        wanted: list[int] = []
        if self._store is not None:
            lengths = {reach, self._junction(hashes, end), self._boundary(end - 1), self._boundary(end)}
            lengths.update(range(self._interval, end + 1, self._interval) if self._interval else ())
            wanted = sorted(length for length in lengths if length > hit)
        self._known[sequence] = _Known(hashes, hit // size, wanted)
        self.queried_tokens += end
        self.hit_tokens += hit

    def resume(self, sequence: Sequence) -> None:
        """Bring the state of an admitted sequence's reused prefix into its slot."""
        length = sequence.cached_tokens
        if not length or self._store is None:
            return
        checkpoint = self._store.load(self._hash_at(self._known[sequence].hashes, length), sequence.slot)
        if self._proposer:
            self._proposer.resume(checkpoint.hidden, sequence.prompt_ids[length], length, sequence.blocks)

    def next_cut(self, sequence: Sequence) -> int | None:
        """Length at which the sequence's next chunk must end at the latest; None: anywhere."""
        known = self._known.get(sequence)
        return next((c for c in known.wanted if c > sequence.length), None) if known else None

    def after_chunk(self, sequence: Sequence, end: int, hidden: torch.Tensor) -> None:
        """Take note of a prompt read up to `end`; `hidden` [H] is the target's post-norm hidden of its last
        token."""
        known = self._known[sequence]
        self._seal(sequence, known, end)
        if self._store is not None and end in known.wanted:
            self._store.save(self._hash_at(known.hashes, end), sequence.slot, hidden)

    # -- answers -------------------------------------------------------------------------------------------

    def needs_hidden(self, sequence: Sequence, count: int) -> bool:
        """Whether `after_window` will want hidden rows if `count` rows become committed."""
        size, start = self._blocks.block_size, sequence.length
        return self._answers and self._store is not None and (start + count) // size > start // size

    def after_window(self, sequence: Sequence, hidden: torch.Tensor | None) -> None:
        """Take note of window rows that were just committed.

        `hidden` [at least as many rows, H], from the anchor's on: the target's post-norm hidden; given where
        `needs_hidden` says so. In deterministic mode nothing that an answer wrote is found again.
        """
        start, end, size = sequence.length - sequence.pending, sequence.length, self._blocks.block_size
        if not self._answers or end // size == start // size:
            return
        known = self._known[sequence]
        for index in range(len(known.hashes), end // size):
            tokens = sequence.tokens(index * size, (index + 1) * size)
            known.hashes += chain_hashes(tokens, size, known.hashes[-1] if index else ROOT, self._written)
        self._seal(sequence, known, end)
        if self._store is None:
            return
        assert hidden is not None, "a filled block comes with its hidden rows"
        last = self._boundary(end)
        for length in range(self._boundary(start) + size, last + 1, size):
            regular = self._interval is not None and length % self._interval == 0
            if length == last or regular:
                self._keep(sequence, known, length, hidden[length - start - 1], regular)

    def _keep(
        self, sequence: Sequence, known: _Known, length: int, hidden: torch.Tensor, regular: bool
    ) -> None:
        """Keep the answer's state at `length` in place of the one before; a `regular` one stays."""
        assert self._store is not None
        if known.tail is not None:
            self._store.discard(known.tail)
        content = self._hash_at(known.hashes, length)
        rows = length - (sequence.length - sequence.pending)
        self._store.save(content, sequence.slot, hidden, rows)
        known.tail = None if regular else content

    # -- all -----------------------------------------------------------------------------------------------

    @property
    def num_checkpoints(self) -> int:
        """Recurrent states that are kept now."""
        return 0 if self._store is None else len(self._store)

    def moved(self, sequence: Sequence) -> None:
        """The sequence came back from host memory into other blocks, which nobody finds yet."""
        self._known[sequence].sealed = 0

    def clear(self) -> None:
        """Forget every prefix; what runs goes on, and is remembered anew."""
        self._blocks.forget_contents()
        if self._store is not None:
            self._store.clear()
        for known in self._known.values():
            known.sealed, known.tail = 0, None

    def forget(self, sequence: Sequence) -> None:
        """The sequence is done; what it left in the pool and the store stays."""
        self._known.pop(sequence, None)

    def check(self, live: int) -> None:
        """Assert that no checkpoint leaked and that at most `live` sequences are remembered."""
        assert len(self._known) <= live, "a sequence that is done is still remembered"
        if self._store is not None:
            self._store.check()

    def _seal(self, sequence: Sequence, known: _Known, length: int) -> None:
        """Let the full blocks of a sequence be found, every position of which is below `length`."""
        for index in range(known.sealed, min(length // self._blocks.block_size, len(known.hashes))):
            self._blocks.seal(sequence.blocks[index], known.hashes[index])
            known.sealed = index + 1

    def _junction(self, hashes: list[BlockHash], end: int) -> int:
        """The longest boundary up to which a prompt agrees with one that is not done, read or not."""
        shared = max((common_blocks(hashes, known.hashes) for known in self._known.values()), default=0)
        return self._boundary(min(shared * self._blocks.block_size, end - 1))

    def _resumable(self, hashes: list[BlockHash], reach: int) -> int:
        """The longest length up to `reach`, whose blocks are known, from which reading can go on."""
        store = self._store
        if store is None:
            return reach
        return next((c for c in range(reach, 0, -self._unit) if self._hash_at(hashes, c) in store), 0)

    def _boundary(self, length: int) -> int:
        return length // self._unit * self._unit

    def _hash_at(self, hashes: list[BlockHash], length: int) -> BlockHash:
        return hashes[length // self._blocks.block_size - 1]


def reuse_unit(block_size: int, deterministic: bool) -> int:
    """Hits end, and checkpoints lie, at multiples of this many tokens: whole blocks, and in deterministic
    mode whole cells of the prompt's arithmetic too."""
    return math.lcm(block_size, PREFILL_CHUNK) if deterministic else block_size

"""Reuse of known prompt prefixes: blocks and recurrent state together, so that speculation goes on as if all
was read.

Only prompt positions are reused. Their KV, drafter KV and states come from the prompt's arithmetic, cut at
the same absolute positions in every request, so in deterministic mode a hit gives the very bits that reading
would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from paceline.cache.blocks import BlockPool
from paceline.cache.checkpoints import CheckpointStore
from paceline.cache.prefix import BlockHash, chain_hashes
from paceline.config.engine import PREFILL_CHUNK

if TYPE_CHECKING:
    from paceline.engine.sequence import Sequence
    from paceline.speculate.base import Proposer


@dataclass(slots=True)
class _Known:
    """What is remembered of a running sequence's prompt."""

    hashes: list[BlockHash]
    """Of the prompt's full blocks."""
    sealed: int
    """Blocks that can be found by their content."""
    wanted: list[int] = field(default_factory=list)
    """Lengths at which a checkpoint is to be kept, ascending."""


class PrefixReuse:
    """Finds the longest prefix that has both KV blocks and a checkpoint, and keeps what later requests can
    use.

    A model of attention alone needs no checkpoint (`store` None): its blocks are all there is to a prefix.

    Checkpoints are kept at the last boundary before a prompt's end, and where the blocks of earlier requests
    reach further than their checkpoints: there the next request with that prefix will find one.
    """

    def __init__(self, blocks: BlockPool, store: CheckpointStore | None, proposer: Proposer | None):
        self._blocks, self._store, self._proposer = blocks, store, proposer
        self._unit = math.lcm(blocks.block_size, PREFILL_CHUNK)
        self._known: dict[Sequence, _Known] = {}
        self.queried_tokens = 0
        """Prompt tokens of all admitted sequences."""
        self.hit_tokens = 0
        """Those of them that were not read again."""

    def admit(self, sequence: Sequence) -> None:
        """Give a new sequence the blocks of the longest usable prefix; the caller is about to give it the
        rest."""
        hashes = chain_hashes(sequence.prompt_ids, self._blocks.block_size)
        matched = next((i for i, h in enumerate(hashes) if not self._blocks.knows(h)), len(hashes))
        last = len(sequence.prompt_ids) - 1  # at least one token is read, for its logits
        reach = min(matched * self._blocks.block_size, last) // self._unit * self._unit
        hit = self._resumable(hashes, reach)
        count = hit // self._blocks.block_size
        blocks = [self._blocks.acquire(content) for content in hashes[:count]]
        sequence.reuse([block for block in blocks if block is not None], hit)
        wanted: list[int] = []
        if self._store is not None:
            wanted = sorted({reach, last // self._unit * self._unit} - set(range(hit + 1)))
        self._known[sequence] = _Known(hashes, count, wanted)
        self.queried_tokens += len(sequence.prompt_ids)
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
        for index in range(known.sealed, min(end // self._blocks.block_size, len(known.hashes))):
            self._blocks.seal(sequence.blocks[index], known.hashes[index])
            known.sealed = index + 1
        if self._store is not None and end in known.wanted:
            self._store.save(self._hash_at(known.hashes, end), sequence.slot, hidden)

    @property
    def num_checkpoints(self) -> int:
        """Recurrent states that are kept now."""
        return 0 if self._store is None else len(self._store)

    def clear(self) -> None:
        """Forget every prefix; what runs goes on, and is remembered anew."""
        self._blocks.forget_contents()
        if self._store is not None:
            self._store.clear()

    def forget(self, sequence: Sequence) -> None:
        """The sequence is done; what it left in the pool and the store stays."""
        self._known.pop(sequence, None)

    def _resumable(self, hashes: list[BlockHash], reach: int) -> int:
        """The longest length up to `reach`, whose blocks are known, from which reading can go on."""
        store = self._store
        if store is None:
            return reach
        return next((c for c in range(reach, 0, -self._unit) if self._hash_at(hashes, c) in store), 0)

    def _hash_at(self, hashes: list[BlockHash], length: int) -> BlockHash:
        return hashes[length // self._blocks.block_size - 1]

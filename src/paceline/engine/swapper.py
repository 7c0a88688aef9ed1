"""Moves a sequence to host memory for the scheduler: the cache's copies and the engine's own state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.cache.base import blocks_for
from paceline.cache.swap import HostSwap, SwapHandle
from paceline.engine.sequence import Sequence

ExportState = Callable[[Sequence], Any]
"""`export(sequence)`: what the engine keeps in the sequence's slot outside the cache (sampler, proposer)."""
ImportState = Callable[[Sequence, Any], None]
"""`import_(sequence, state)`: put it back into the slot that the sequence owns now."""


class SequenceSwapper:
    """`engine.plan.Swapper` over a `HostSwap`."""

    def __init__(
        self,
        host: HostSwap,
        *,
        block_size: int,
        lookahead: int,
        export: ExportState,
        import_: ImportState,
        leave: Callable[[Sequence], None] | None = None,
    ) -> None:
        """`leave(sequence)` is called once its copy is safe and it is about to lose its slot."""
        self._host = host
        self._block_size = block_size
        self._lookahead = lookahead
        self._export = export
        self._import = import_
        self._leave = leave
        self._handles: dict[Sequence, SwapHandle] = {}

    def save(self, sequence: Sequence) -> None:
        """Copy what is valid: positions before `length`, and those that the proposer has looked ahead to."""
        held = blocks_for(sequence.length + self._lookahead, self._block_size)
        self._handles[sequence] = self._host.save(
            sequence.blocks[:held], sequence.slot, self._export(sequence)
        )
        if self._leave:
            self._leave(sequence)

    def restore(self, sequence: Sequence) -> None:
        """Copy it back into the sequence's new blocks and slot."""
        handle = self._handles.pop(sequence)
        extras = self._host.restore(handle, sequence.blocks[: handle.num_blocks], sequence.slot)
        self._import(sequence, extras)

    def drop(self, sequence: Sequence) -> None:
        """Forget the copy."""
        self._host.drop(self._handles.pop(sequence))

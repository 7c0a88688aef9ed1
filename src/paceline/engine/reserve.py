"""How many blocks a sequence needs for its next step, and the taking and giving back of them."""

from __future__ import annotations

import warnings

from paceline.cache.base import blocks_for
from paceline.cache.blocks import BlockPool
from paceline.engine.plan import SchedulerLimits
from paceline.engine.sequence import Sequence


class Reservations:
    """Block tables of running sequences: everything that a step may write is reserved before it runs.

    A window of r rows at length s writes positions s..s+r-1 and, where the proposer looks ahead, `lookahead`
    more; a window with drafts also has the `draft_span` positions from s on as the drafter's scratch. The
    last token that a sequence may emit never gets KV, so only these two make a table grow beyond
    `Sequence.max_positions`.
    """

    def __init__(self, blocks: BlockPool, limits: SchedulerLimits) -> None:
        self._blocks = blocks
        self._limits = limits
        self._warned = False

    def wanted_rows(self, sequence: Sequence) -> int:
        """The anchor and its drafts, clipped to the tokens that may still come and the drafter's length."""
        assert sequence.remaining > 0, "a sequence that may not go on is still running"
        drafts = min(self._limits.num_drafts, sequence.remaining - 1)
        if sequence.max_drafts is not None:
            drafts = min(drafts, sequence.max_drafts)
        longest = self._limits.drafter_max_length
        if drafts > 0 and longest is not None:
            drafts = max(0, min(drafts, longest - 1 - sequence.length))
            if drafts == 0:
                self._warn(longest)
        return 1 + drafts

    def least_blocks(self, sequence: Sequence) -> int:
        """Blocks without which a sequence cannot run: its whole prompt's, or those of a window of one row."""
        if sequence.in_prefill:
            end = len(sequence.prompt_ids) + self._limits.lookahead
            return blocks_for(end, self._blocks.block_size)
        return self._window_blocks(sequence, 1)

    def missing(self, sequence: Sequence) -> int:
        """Blocks that the sequence lacks to run at all."""
        return max(0, self.least_blocks(sequence) - len(sequence.blocks))

    def extend(self, sequence: Sequence, count: int) -> None:
        """Add `count` free blocks to the table."""
        if count:
            sequence.set_blocks(sequence.blocks + self._blocks.allocate(count))

    def widen(self, sequence: Sequence) -> int:
        """Take blocks for as many drafts as are wanted and fit; returns the window's rows.

        The sequence owns the blocks of a window of one row already.
        """
        rows = self.wanted_rows(sequence)
        if rows == 1:
            return 1
        lacking = self._window_blocks(sequence, rows) - len(sequence.blocks)
        self.extend(sequence, max(0, min(lacking, self._blocks.num_free)))
        while rows > 1 and self._window_blocks(sequence, rows) > len(sequence.blocks):
            rows -= 1
        return rows

    def trim(self, sequence: Sequence) -> None:
        """Give back blocks that only drafts would use: what they hold is scratch."""
        keep = self.least_blocks(sequence)
        if keep < len(sequence.blocks):
            self._blocks.unref(sequence.blocks[keep:])
            sequence.set_blocks(sequence.blocks[:keep])

    def release(self, sequence: Sequence) -> None:
        """Let go of the whole table; blocks that others hold too stay theirs."""
        self._blocks.unref(sequence.blocks)
        sequence.set_blocks([])

    def _window_blocks(self, sequence: Sequence, rows: int) -> int:
        end = min(sequence.length + rows, sequence.max_positions) + self._limits.lookahead
        if rows > 1:
            end = max(end, sequence.length + self._limits.draft_span)
        return blocks_for(end, self._blocks.block_size)

    def _warn(self, longest: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a sequence has reached the drafter's maximum length of {longest} tokens: "
                "it goes on without drafts (slower, same text)",
                RuntimeWarning,
                stacklevel=2,
            )

"""A sequence: the host's book-keeping of one choice of one request.

It holds no tensor. `length` is the one number that says what is committed: target KV exists for positions
0..length-1, and KV at `length` and beyond is garbage. While the prompt is being read, `length` counts the
prompt tokens whose KV and state exist; afterwards the anchor (the newest token, whose KV does not exist yet)
sits at position `length`, so `length == len(prompt) + len(output) - 1`. A length moves only in
`commit_prompt` and `commit`.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from paceline.cache.base import NULL_SLOT
from paceline.speculate.recall import REACH, Endings, recalled_row

if TYPE_CHECKING:
    from paceline.config.sampling import SamplingParams
    from paceline.engine.grammar import GrammarState


class SequenceStatus(Enum):
    """Where a sequence is in its life; only a running one owns blocks and a slot."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request, compared and hashed by identity.

    Only the scheduler writes `status`, `slot`, `arrival`, `max_new_tokens` and the block table.
    """

    request_id: str
    index: int
    """Which choice of the request (0..n-1)."""
    prompt_ids: list[int]
    params: SamplingParams
    key: int
    """Request key: what the sampling noise is drawn from."""
    max_drafts: int | None = None
    """Drafts of a window at most; None: as many as the engine's windows hold."""
    grammar: GrammarState | None = None
    """Where the choice stands in the form that its answer must have, if there is one."""

    output_ids: list[int] = field(default_factory=list)
    length: int = 0
    """Committed length s in tokens."""
    pending: int = 0
    """Rows of the slot's last window that are committed but not yet replayed onto the state."""
    status: SequenceStatus = SequenceStatus.WAITING
    slot: int = NULL_SLOT
    blocks: list[int] = field(default_factory=list)
    """Block table: block i holds positions i * block_size and up. Changed through `set_blocks` alone."""
    table_version: int = 0
    """Goes up with every change of `blocks`, so that copies of the table know when they are stale."""
    cached_tokens: int = 0
    """Prompt tokens that were not read, because an earlier request had the same prefix."""
    arrival: int = -1
    """Place in the line, given at admission to the scheduler; smaller is older."""
    max_new_tokens: int = 0
    """Output tokens at most: the request's limit or what the model length leaves; set by the scheduler."""

    endings: Endings | None = None
    """Index of the text by its endings, made when `recall` is asked first."""

    @property
    def computed(self) -> int:
        """Prompt tokens whose KV and state exist."""
        return min(self.length, len(self.prompt_ids))

    @property
    def in_prefill(self) -> bool:
        """Whether part of the prompt still has to be read."""
        return self.length < len(self.prompt_ids)

    @property
    def anchor(self) -> int:
        """The newest token: it sits at position `length` and opens the next window."""
        assert self.output_ids, "a sequence has no anchor before its first output token"
        return self.output_ids[-1]

    @property
    def remaining(self) -> int:
        """Output tokens that may still be emitted."""
        return self.max_new_tokens - len(self.output_ids)

    @property
    def max_positions(self) -> int:
        """Positions that can ever need KV: the last token that may be emitted never gets any."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    def tokens(self, start: int, end: int) -> list[int]:
        """Ids of prompt and output at positions start..end-1."""
        split = len(self.prompt_ids)
        return self.prompt_ids[start:end] + self.output_ids[max(start - split, 0) : max(end - split, 0)]

    def recall(self, width: int) -> list[int]:
        """What stood behind the last earlier place that ends as the text does now: `1 + width` numbers, see
        `speculate.recall.recalled_row`."""
        if self.endings is None:
            self.endings = Endings(len(self.prompt_ids) + self.max_new_tokens)
            self.endings.extend(self.prompt_ids[-REACH:])
        known = len(self.endings) - min(len(self.prompt_ids), REACH)
        self.endings.extend(self.output_ids[known:])
        return recalled_row(self.endings, width)

    def commit_prompt(self, count: int, first_token: int | None = None) -> None:
        """Take in `count` prompt tokens that a prefill chunk has run.

        `first_token` is the token sampled from the prompt's last row: given exactly when that row has run.
        """
        assert count > 0 and self.length + count <= len(self.prompt_ids), "a chunk runs past the prompt"
        self.length += count
        self.pending = 0
        assert (first_token is None) == self.in_prefill, "the prompt's last row, and no other, gives a token"
        if first_token is not None:
            self.output_ids.append(first_token)

    def commit(self, tokens: Tokens[int]) -> None:
        """Take in what a verified window emits: the accepted drafts and the bonus, or a prefix of them.

        With k tokens, window rows 0..k-1 (the anchor included) become committed and wait to be replayed.
        """
        assert tokens and not self.in_prefill, "a window commits at least one token, after the prompt"
        self.output_ids.extend(tokens)
        self.length += len(tokens)
        self.pending = len(tokens)

    def reuse(self, blocks: list[int], length: int) -> None:
        """Start behind a known prefix: its blocks, held for this sequence, and its length."""
        assert not self.blocks and self.length == 0, "a prefix is reused before anything is read"
        self.set_blocks(blocks)
        self.length = self.cached_tokens = length

    def set_blocks(self, blocks: list[int]) -> None:
        """Replace the block table."""
        self.blocks = blocks
        self.table_version += 1

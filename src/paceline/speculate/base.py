"""The contract of a proposer: it guesses the next tokens of every running sequence.

A decode step is: `propose` -> one verification pass of the target -> `accept` -> `observe`.

Who calls: the engine's runner, once a step each, for all sequences of the step together. Who owns: a
proposer owns its weights and one row of scratch a state slot; the drafter's keys and values live in the
engine's cache under the target's block ids. What stays true:

- `observe` sees every row that the target has run, in order. Of a verification window it sees the rejected
  rows too (so that nothing waits for the host); they lie at or beyond the committed length and are
  overwritten by the next window before anything may look at them.
- `propose` may write scratch at positions >= the committed length, never before it.
- A proposer that `looks_back` is told what followed where the text once ended alike. Its drafts follow that
  as far as its own logits speak for it (`recall.follow`): in `choose`, or where it chooses by itself.
- Nothing that a proposer does can change the text: a wrong guess costs time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from paceline.layers.batch import FlatBatch

ChooseTokens = Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]
"""`choose(logits [S, m, V], first, drafted [S, first]) -> tokens [S, m]`: turns a drafter's logits for
the draft positions first..first+m-1 into tokens, given the drafts before them (greedy, or coupled to the
sampling noise)."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What a proposer is told at the start of a decode step, for S sequences."""

    anchors: torch.Tensor
    """[S] newest token of each sequence; its keys, values and features do not exist yet."""
    lengths: torch.Tensor
    """[S] committed length s: the anchor's position."""
    slots: torch.Tensor
    """[S] state slots (0: padding sequence)."""
    block_tables: torch.Tensor
    """[S, B] block ids, padded with 0."""
    limits: Sequence[int]
    """Most drafts that each sequence can use this step (host), at most `num_speculative_tokens`."""
    rows: torch.Tensor | None
    """[S] rows of each window, anchor included (0: padding); None where all can use the same number."""
    histories: Sequence[Sequence[int]] | None
    """Prompt and output ids of each sequence, the anchor included (host); only if `needs_history`."""
    choose: ChooseTokens
    max_context: int
    """Static upper bound on any position that is written or read, plus one."""
    best_of: int | None = None
    """Where `choose` takes the best of each row's raw logits: how many ids count, so that a proposer may do
    the same by itself. None: only `choose` knows."""
    recalled: torch.Tensor | None = None
    """[S, 1 + n] rows of `recall.recalled_row`, which `choose` follows already; None: there is nothing to
    follow."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposed tokens. Row i holds `counts[i]` of them; what lies beyond is ignored."""

    tokens: torch.Tensor
    """[S, n] int64."""
    counts: Sequence[int]
    """Drafts of each sequence (host)."""


@dataclass(frozen=True, slots=True)
class ObservedRows:
    """Rows that the target has just run: prompt chunks, or windows after verification."""

    batch: FlatBatch
    hidden: torch.Tensor
    """[R, H] after the target's final norm."""
    features: torch.Tensor | None
    """[R, len(taps) * H]; None for a proposer without taps."""
    next_ids: torch.Tensor
    """[R] the token at each row's position + 1 (prompt token, or the one sampled from the row)."""
    last_rows: torch.Tensor
    """[S] the row from which the newest committed token came (before the prompt's end: the chunk's last
    row)."""


class Proposer(ABC):
    """Base class of the proposers; see the module's docstring for what holds."""

    method: str
    num_speculative_tokens: int
    taps: tuple[int, ...] = ()
    """Target layers whose outputs `observe` wants."""
    needs_history = False
    """Whether `propose` reads token ids on the host."""
    looks_back = False
    """Whether its drafts follow the text's own past where that is likely (`recall`)."""
    lookahead = 0
    """Positions beyond the window that `observe` writes."""
    draft_span = 0
    """Positions from the anchor's on that `propose` writes as scratch, however few drafts are asked for."""
    max_length: int | None = None
    """Longest sequence that can be drafted for (the drafter's own maximum), in tokens; None: no limit."""

    @abstractmethod
    def propose(self, request: DraftRequest) -> Drafts:
        """Draft up to `limits[i]` tokens for each sequence."""

    def observe(self, rows: ObservedRows) -> None:  # noqa: B027 (no state, nothing to observe)
        """Take in rows that the target has run; nothing to do for a proposer without state."""

    def resume(  # noqa: B027 (nothing to do where a row depends on its own position alone)
        self, hidden: torch.Tensor, token: int, position: int, blocks: Sequence[int]
    ) -> None:
        """A sequence starts behind a reused prefix of `position` tokens.

        `hidden` [H]: the target's post-norm hidden of position - 1; `token`: the one at `position`;
        `blocks`: the sequence's table. Rows before `position` lie in reused blocks already.
        """

    def export_slot(self, slot: int) -> Any:
        """What must move with a preempted sequence besides its blocks, as host objects."""
        return None

    def import_slot(self, slot: int, state: Any) -> None:  # noqa: B027
        """Put back what `export_slot` gave, possibly into another slot."""

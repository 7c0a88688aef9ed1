"""DFlash as a proposer: one pass of a block-diffusion drafter gives all drafts of a step.

Context rows are exactly the committed positions. The block's own keys and values (anchor and masks) are
scratch at positions s..s+n and are overwritten by context rows before a later block can see them as
context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.models.dflash_block import BlockRequest
from paceline.speculate.base import DraftRequest, Drafts, ObservedRows, Proposer
from paceline.speculate.recall import follow

if TYPE_CHECKING:
    from paceline.models.base import KVPair, TargetModel
    from paceline.models.dflash import DFlashDrafter


class DFlashProposer(Proposer):
    """Feeds the target's tapped layers to a DFlash drafter."""

    method = "dflash"

    def __init__(
        self, drafter: DFlashDrafter, target: TargetModel, kv: list[KVPair], num_speculative_tokens: int
    ):
        self.drafter, self.target, self.kv = drafter, target, kv
        self.num_speculative_tokens = num_speculative_tokens
        self.taps = tuple(drafter.spec.target_layer_ids)
        self.max_length = drafter.spec.max_position
        self.draft_span = drafter.spec.block_size

    def observe(self, rows: ObservedRows) -> None:
        """Append the rows' features to the drafter's context."""
        assert rows.features is not None
        self.drafter.append_context(rows.features, rows.batch.positions, rows.batch.slot_mapping, self.kv)

    def propose(self, request: DraftRequest) -> Drafts:
        """Draft a whole block for every sequence, and take the first n drafts of it.

        A block shorter than the one that the drafter was trained on guesses worse, even its first tokens
        (docs/guides/speculation.md), and masks cost little.
        """
        n, span = self.num_speculative_tokens, self.draft_span
        block = BlockRequest(
            anchors=request.anchors,
            starts=request.lengths,
            block_tables=request.block_tables,
            n=span - 1,
            wanted=n,
            max_context=request.max_context,
            counts=None if request.rows is None else torch.where(request.rows > 0, span, 0),
        )
        if request.best_of:
            recalled = request.recalled
            asked = None if recalled is None else recalled[:, 1 : 1 + n]
            best = self.drafter.best_drafts(block, self.kv, self.target, request.best_of, asked)
            tokens = best.tokens
            if recalled is not None and best.leads is not None:
                tokens = follow(tokens, best.leads, recalled)
            return Drafts(tokens, list(request.limits))
        hidden = self.drafter.draft(block, self.kv, self.target)  # [S, n, H]
        logits = self.target.logits(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:2], -1)
        return Drafts(request.choose(logits, 0, request.anchors[:, None][:, :0]), list(request.limits))

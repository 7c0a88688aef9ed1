"""The model's own multi-token head as a proposer.

The head's row of (h_i, t_{i+1}) lives at position i+1, so that a cache block depends on nothing after it.
Rows written while drafting use the head's own output as hidden; once the target has run those positions,
`observe` rewrites them from the target's hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from paceline.layers.batch import cache_rows
from paceline.speculate.base import DraftRequest, Drafts, ObservedRows, Proposer

if TYPE_CHECKING:
    from paceline.models.base import KVPair, TargetModel
    from paceline.models.mtp import MTPHead


class MTPProposer(Proposer):
    """Drafts one token per pass of the head, feeding its normed output back."""

    method = "mtp"
    lookahead = 1

    def __init__(
        self, head: MTPHead, target: TargetModel, kv: KVPair, num_speculative_tokens: int, num_slots: int
    ):
        self.head, self.target, self.kv = head, target, kv
        self.num_speculative_tokens = num_speculative_tokens
        self.block_size = kv[0].shape[1]
        # Output of the head's row at the anchor's position, one a state slot: it predicts the first draft.
        self.hidden = torch.zeros(num_slots, target.spec.hidden_size, dtype=kv[0].dtype, device=kv[0].device)

    def observe(self, rows: ObservedRows) -> None:
        """Run the head over (hidden, next token) of every row and keep the newest output of each sequence."""
        batch = rows.batch
        positions = batch.positions + 1
        visible = batch.row_last >= batch.row_first
        where = cache_rows(positions, batch.row_seq, batch.block_tables, self.block_size)
        out = self.head.forward(
            ids=rows.next_ids,
            hidden=rows.hidden,
            positions=self._inside(positions, batch.block_tables),
            row_seq=batch.row_seq,
            block_tables=batch.block_tables,
            slot_mapping=torch.where(visible, where, 0),
            kv=self.kv,
            max_context=batch.max_context + 1,
        )
        self.hidden.index_copy_(0, batch.slots, out[rows.last_rows])

    def propose(self, request: DraftRequest) -> Drafts:
        """Draft `num_speculative_tokens` for all sequences, one after the other."""
        count = max(request.limits, default=0)
        tokens = torch.zeros(
            len(request.limits), self.num_speculative_tokens, dtype=torch.int64, device=self.hidden.device
        )
        hidden = self.hidden[request.slots]
        row_seq = torch.arange(len(request.limits), device=hidden.device)
        for j in range(count):
            if j:
                positions = request.lengths + j
                if request.rows is not None:  # beyond a shorter window: a padding row
                    positions = torch.where(request.rows > j + 1, positions, 0)
                hidden = self.head.forward(
                    ids=tokens[:, j - 1].contiguous(),
                    hidden=hidden,
                    positions=self._inside(positions, request.block_tables),
                    row_seq=row_seq,
                    block_tables=request.block_tables,
                    slot_mapping=cache_rows(positions, row_seq, request.block_tables, self.block_size),
                    kv=self.kv,
                    max_context=request.max_context,
                )
            logits = self.target.logits(hidden)[:, None]
            tokens[:, j] = request.choose(logits, j, tokens[:, :j])[:, 0]
        return Drafts(tokens, list(request.limits))

    def _inside(self, positions: torch.Tensor, block_tables: torch.Tensor) -> torch.Tensor:
        """Positions [R] that the tables hold, others as padding rows (0).

        The row after a sequence's last position, and drafts beyond a short window, have no block to look at
        and are needed by nobody.
        """
        return torch.where(positions < block_tables.shape[1] * self.block_size, positions, 0)

    def resume(self, hidden: torch.Tensor, token: int, position: int, blocks: Sequence[int]) -> None:
        """Make the row of (hidden, token), which lies in the first block that is not reused."""
        device = self.hidden.device
        index = torch.tensor([token, position, 0], dtype=torch.int64).to(device)
        table = torch.tensor([list(blocks)], dtype=torch.int64).to(device)
        self.head.forward(
            ids=index[:1],
            hidden=hidden[None],
            positions=index[1:2],
            row_seq=index[2:],
            block_tables=table,
            slot_mapping=cache_rows(index[1:2], index[2:], table, self.block_size),
            kv=self.kv,
            max_context=position + 1,
        )

    def export_slot(self, slot: int) -> Any:
        """The head's output at the anchor."""
        return self.hidden[slot].to("cpu", copy=True)

    def import_slot(self, slot: int, state: Any) -> None:
        """Put the head's output back."""
        self.hidden[slot] = state

"""What every part of the cache agrees on.

Two pools, never mixed, so there is no page size to unify:

- **blocks** hold keys and values of `block_size` consecutive positions. Target, drafter and multi-token head
  keep theirs under the same block ids, each in tensors of its own geometry. Blocks are counted by references,
  so that sequences may share a prefix.
- **slots** hold the recurrent state of one sequence and the rows of its last window. A slot has one owner.

Block 0 and slot 0 are null: padding reads and writes them, nobody owns them, nothing that matters is there.

For a sequence of committed length s the KV of positions 0..s-1 is valid; whatever lies at s and beyond is
scratch that the next step overwrites (a multi-token head also owns position s: the row of the anchor). The
state in its slot, with the `pending` rows of its last window replayed, is the state after exactly s tokens.
"""

from __future__ import annotations

NULL_BLOCK = 0
NULL_SLOT = 0


def blocks_for(positions: int, block_size: int) -> int:
    """Blocks that hold positions 0..positions-1."""
    return -(-positions // block_size)

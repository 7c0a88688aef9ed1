"""Content hashes of full blocks: equal hashes mean equal tokens from position 0 to the block's end.

Each block's hash covers its parent's hash and its own token ids, so a block can only be found behind the very
prefix that it was computed with. The digest is the same in every process and on every machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

BlockHash = bytes

ROOT = b""
"""Parent of a sequence's first block."""


def block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Hash (16 bytes) of a full block behind `parent`."""
    digest = blake2b(parent, digest_size=16)
    digest.update(struct.pack(f"<{len(token_ids)}q", *token_ids))
    return digest.digest()


def chain_hashes(token_ids: Sequence[int], block_size: int, parent: BlockHash = ROOT) -> list[BlockHash]:
    """Hashes of all full blocks of `token_ids`, in order; a partial last block has none."""
    hashes = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = block_hash(parent, token_ids[end - block_size : end])
        hashes.append(parent)
    return hashes

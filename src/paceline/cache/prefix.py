"""Content hashes of full blocks: equal hashes mean equal tokens from position 0 to the block's end, written
in the same way as far as that matters.

Each block's hash covers its parent's hash and its own token ids, so a block can only be found behind the very
prefix that it was computed with. The digest is the same in every process and on every machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from hashlib import blake2b

BlockHash = bytes

ROOT = b""
"""Parent of a sequence's first block."""


class Written(Enum):
    """How the positions of a block were computed. Prompts and answers go through arithmetic whose last bits
    differ; a hash covers the difference where it may not show."""

    ANYHOW = b""
    """By a prompt or by an answer: it does not matter."""
    PREFILL = b"prefill"
    """By a prompt alone (deterministic mode). What an answer wrote, even in part, has no hash there."""


def block_hash(parent: BlockHash, token_ids: Sequence[int], written: Written = Written.ANYHOW) -> BlockHash:
    """Hash (16 bytes) of a full block behind `parent`."""
    digest = blake2b(parent, digest_size=16, person=written.value)
    digest.update(struct.pack(f"<{len(token_ids)}q", *token_ids))
    return digest.digest()


def chain_hashes(
    token_ids: Sequence[int],
    block_size: int,
    parent: BlockHash = ROOT,
    written: Written = Written.ANYHOW,
) -> list[BlockHash]:
    """Hashes of all full blocks of `token_ids`, in order; a partial last block has none."""
    hashes = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = block_hash(parent, token_ids[end - block_size : end], written)
        hashes.append(parent)
    return hashes


def common_blocks(a: Sequence[BlockHash], b: Sequence[BlockHash]) -> int:
    """Blocks with which both chains begin. A hash covers all before it, so bisection finds the last one."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low

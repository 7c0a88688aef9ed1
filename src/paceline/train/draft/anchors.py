"""Where blocks begin: random anchors in packed rows, redrawn at every step, and what belongs to each block.

An anchor is a token of an answer that has a successor in the same answer: at serving it is the newest token,
whose features do not exist yet, and the block guesses what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Anchors:
    """N anchors in each of B rows, in ascending order; the valid ones come first."""

    positions: Tensor
    """[B, N] index within the row; 0 where not valid."""
    starts: Tensor
    """[B, N] index of the first token of the anchor's document."""
    valid: Tensor
    """[B, N] bool: False where the row has fewer anchors than N."""


@dataclass(frozen=True, slots=True)
class BlockLabels:
    """What the K guesses of each block should be."""

    ids: Tensor
    """[B, N, K] int64: token at anchor + 1 .. anchor + K, wherever that is; read it where `valid`."""
    valid: Tensor
    """[B, N, K] bool: a token of the same answer stands there, and the anchor is valid."""
    at: Tensor
    """[B, N, K] int64 index within the row, clipped to it."""


def document_starts(documents: Tensor) -> Tensor:
    """[B, T] int64: index within the row of the first token of each position's document."""
    index = torch.arange(documents.shape[1], device=documents.device)
    first = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return torch.where(first, index, 0).cummax(1).values


def draw_anchors(
    loss_mask: Tensor, documents: Tensor, count: int, generator: torch.Generator | None
) -> Anchors:
    """`count` different anchors a row, uniformly among loss_mask[a] and loss_mask[a + 1] of one document.

    loss_mask, documents [B, T]; generator: on the CPU or on their device. The width is `count` in every row
    (at most T - 1), so that shapes do not depend on the data; nothing waits for the host.
    """
    possible = loss_mask[:, :-1] & loss_mask[:, 1:] & (documents[:, :-1] == documents[:, 1:])
    device = None if generator is None else generator.device
    draw = torch.rand(possible.shape, generator=generator, device=device).to(possible.device)
    rank = torch.where(possible, draw, -1.0)
    best, chosen = rank.topk(min(count, possible.shape[1]), dim=1)
    last = documents.shape[1]
    ordered = torch.where(best >= 0, chosen, last).sort(1).values
    valid = ordered < last
    positions = torch.where(valid, ordered, 0)
    return Anchors(positions, document_starts(documents).gather(1, positions), valid)


def block_labels(
    ids: Tensor, loss_mask: Tensor, documents: Tensor, anchors: Anchors, count: int
) -> BlockLabels:
    """The `count` tokens after each anchor: guess k is compared with the token AT anchor + k (no shift)."""
    batch, length = ids.shape
    wanted = anchors.positions.unsqueeze(-1) + torch.arange(1, count + 1, device=ids.device)
    at = wanted.clamp(max=length - 1)

    def pick(values: Tensor) -> Tensor:
        return values.gather(1, at.flatten(1)).view(batch, -1, count)

    document = documents.gather(1, anchors.positions).unsqueeze(-1)
    valid = (wanted < length) & pick(loss_mask) & (pick(documents) == document) & anchors.valid.unsqueeze(-1)
    return BlockLabels(pick(ids), valid, at)


def block_positions(documents: Tensor, anchors: Anchors, size: int) -> Tensor:
    """[B, T + N * size] int64: positions within the document of the context rows, then of the block rows."""
    starts = document_starts(documents)
    context = torch.arange(documents.shape[1], device=documents.device) - starts
    offset = torch.arange(size, device=documents.device)
    block = (anchors.positions - anchors.starts).unsqueeze(-1) + offset
    return torch.cat([context, block.flatten(1)], 1)

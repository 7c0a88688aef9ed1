"""What the target says of a batch: its tapped layers, and where the loss asks for it its final hidden rows.

Online, the frozen target runs once over each batch in the same process. A cache on disk (`train.draft.cache`)
gives the same tensors without the target's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.train.data.batches import TokenBatch
from paceline.train.modules.base import TrainTarget


@dataclass(frozen=True, slots=True)
class Captured:
    """The target's view of a batch of B rows of T tokens."""

    features: Tensor | None
    """[B, T, K * H] residual stream after each tap, in tap order; None without taps."""
    hidden: Tensor | None
    """[B, T, H] after the final norm; None where it was not asked for."""


class FeatureSource(Protocol):
    """Gives the features of a batch on the batch's device."""

    def __call__(self, batch: TokenBatch) -> Captured:
        """Features of every row; what padding holds is not defined."""
        ...


class OnlineFeatures:
    """One forward pass of the frozen target a batch, without a graph."""

    def __init__(self, target: TrainTarget, taps: tuple[int, ...], *, hidden: bool) -> None:
        self._target, self.taps, self.hidden = target, taps, hidden

    @property
    def width(self) -> int:
        """Numbers of the tapped layers at a position."""
        return len(self.taps) * self._target.hidden_size

    @property
    def hidden_width(self) -> int:
        """Numbers of the final hidden row; 0 where it is not asked for."""
        return self._target.hidden_size if self.hidden else 0

    @torch.no_grad()
    def __call__(self, batch: TokenBatch) -> Captured:
        """Run the target over the packed rows."""
        hidden, features = self._target(batch.ids, self.taps, batch.documents)
        return Captured(features, hidden if self.hidden else None)

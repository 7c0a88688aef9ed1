"""The contract between the engine and a target model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from paceline.kernels.gated_delta.base import DeltaState
    from paceline.kernels.linear import Linear
    from paceline.layers.batch import FlatBatch
    from paceline.models.spec import TargetSpec

KVPair = tuple[torch.Tensor, torch.Tensor]
"""Key and value cache of one layer, each [num_blocks, block_size, kv_heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class TargetCache:
    """The tensors that a target reads and writes; the engine owns and sizes them."""

    kv: list[KVPair]
    """One a full-attention layer, in layer order."""
    delta: list[DeltaState]
    """One a linear-attention layer, in layer order."""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one pass leaves: R rows, in batch order."""

    hidden: torch.Tensor
    """[R, hidden_size] after the final norm: what `logits` and an MTP head take."""
    features: torch.Tensor | None
    """[R, len(taps) * hidden_size] residual stream after each tapped layer, in tap order; None without
    taps."""


class TargetModel(Protocol):
    """A target model: a pure function of ids, batch and cache (it owns weights, never state)."""

    @property
    def spec(self) -> TargetSpec:
        """The model's numbers."""
        ...

    @property
    def head(self) -> Linear:
        """The output head alone, for those who keep hidden states and let the rest of the model go."""
        ...

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab_size, hidden_size] the embedding table, in model dtype."""
        ...

    def forward(
        self, ids: torch.Tensor, batch: FlatBatch, cache: TargetCache, taps: tuple[int, ...] = ()
    ) -> TargetOutput:
        """Run rows `ids` [R] int64; writes the rows' keys, values and recurrent rows into `cache`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] -> [R, vocab_size] float32."""
        ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[R] int64 -> [R, hidden_size] rows of the embedding table in model dtype."""
        ...

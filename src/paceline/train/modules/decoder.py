"""What every target in training form has around its layers: tables, final norm, rotation, compiled layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.spec import TargetSpec
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.layers import Linear, RMSNorm, Rope, rope_rows


class Decoder(TrainTarget):
    """A `TrainTarget` but for its passes. Each layer has `decode`, one row a slot."""

    def __init__(
        self, c: TargetSpec, compute: torch.dtype, layers: Iterable[nn.Module], *, zero_centred: bool
    ) -> None:
        super().__init__()
        self.compute = compute
        self.hidden_size, self.vocab_size, self.num_layers = c.hidden_size, c.vocab_size, c.num_layers
        self.max_position, self.eos_ids, self.tied = c.max_position, c.eos_ids, c.tied
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(c.hidden_size, c.rms_eps, zero_centred=zero_centred)
        self.lm_head = None if c.tied else Linear(c.hidden_size, c.vocab_size)
        self._rope_spec = c.rope
        self._run: list[Any] = list(self.layers)
        self._decode: list[Any] = [layer.decode for layer in self.layers]

    def compile_blocks(self) -> None:
        self._run = [torch.compile(layer, dynamic=False) for layer in self.layers]

    def compile_decode(self) -> None:
        self._decode = [torch.compile(step, dynamic=False) for step in self._decode]

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embed_tokens.weight).to(self.compute)

    @property
    def head_weight(self) -> Tensor:
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.head_weight.to(hidden.dtype)).float()

    def _rope(self, positions: Tensor) -> Rope:
        cos, sin = rope_rows(self._rope_spec, positions)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)

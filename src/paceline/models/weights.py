"""Reading the weights of an opened checkpoint in the model's dtype, on its device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.kernels.linear import Matrix
from paceline.kernels.nvfp4 import packed_product
from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import QuantizedCheckpoint


@dataclass(frozen=True, slots=True)
class WeightReader:
    """Reads weights below one prefix, converted to one dtype and device."""

    checkpoint: Checkpoint
    prefix: str
    dtype: torch.dtype
    device: torch.device

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor `prefix + name` in `dtype` (default: the model's), decoded where it is quantised."""
        checkpoint, name, dtype = self.checkpoint, self.prefix + name, dtype or self.dtype
        if isinstance(checkpoint, QuantizedCheckpoint) and name in checkpoint.modules:
            return checkpoint.decoded(name, dtype, self.device)
        return checkpoint.weight(name).to(device=self.device, dtype=dtype).contiguous()

    def matrix(self, name: str) -> Matrix:
        """A linear layer's weight `prefix + name`: plain, or left in 4 bits where the checkpoint is to stay
        so."""
        checkpoint, full = self.checkpoint, self.prefix + name
        if isinstance(checkpoint, QuantizedCheckpoint) and checkpoint.keep_packed:
            module = checkpoint.modules.get(full)
            if module and module.kind == "nvfp4" and packed_product(self.device, self.dtype):
                return checkpoint.packed(full, self.dtype, self.device)
        return self(name)

    def below(self, name: str) -> WeightReader:
        """A reader of the tensors under `prefix + name`."""
        return WeightReader(self.checkpoint, self.prefix + name, self.dtype, self.device)

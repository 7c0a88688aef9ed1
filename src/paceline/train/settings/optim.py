"""How a module is trained: the optimiser, the schedule, when to log, to evaluate and to save."""

from __future__ import annotations

import warnings
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator

from paceline.train.settings.base import Section

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimSettings(Section):
    """The section ``optim`` of every training command.

    The run ends at the first of ``epochs``, ``max_steps`` and ``seconds`` that are given; one must be.
    ``seconds`` counts optimiser steps only: not the first one (which may compile), no evaluation, no saving.
    Up to 20 steps with a learning rate of zero measure the pace, then the number of steps is fixed, so that
    the schedule is a function of the step alone.
    """

    optimizer: Literal["adamw", "muon"] = "adamw"
    """``muon``: Muon for the matrices, AdamW for embeddings, norms and everything that is not a matrix."""
    learning_rate: PositiveFloat = 6e-4
    """Its peak; one rate serves both halves of ``muon``."""
    weight_decay: NonNegative = 0.01
    """Of matrices and tables; norms and biases have none."""
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    """AdamW's."""
    eps: PositiveFloat = 1e-8
    """AdamW's."""
    muon_momentum: Momentum = 0.95
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the rate falls after the warm-up."""
    warmup_ratio: Fraction = 0.04
    """Share of the steps in which the rate rises linearly."""
    min_lr_ratio: Fraction = 0.0
    """Share of the peak at which the rate ends."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients with a larger joint norm are scaled down to it."""
    epochs: PositiveFloat | None = None
    """Passes over the data, fractions too."""
    max_steps: PositiveInt | None = None
    """Optimiser steps."""
    seconds: PositiveFloat | None = None
    """Wall clock of the steps."""
    gradient_accumulation: PositiveInt = 1
    """Batches of one optimiser step in each process."""
    log_every: PositiveInt = 10
    """Steps between lines of metrics; the only ones at which the host waits for the device."""
    eval_every: Count | None = None
    """Steps between evaluations of the exported module, the best of which goes to best/; 0: only at the end;
    absent: ten of them over the run, where there is something to measure with."""
    save_every: Count = 500
    """Steps between resumable checkpoints; 0: only at the end or when interrupted."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """The newest so many stay."""
    seed: int = 0
    """Of initial weights, the order of the data, and whatever else is drawn."""
    compute_dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """What matrices are multiplied in; ``auto``: bf16 on a GPU, fp32 on a CPU. Masters are always fp32."""
    compile: bool = False
    """torch.compile; the first steps take minutes."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several processes share the work. ``fsdp`` also divides gradients and optimiser state."""
    tensorboard: bool = False
    """Curves in tensorboard/ beside metrics.jsonl; needs the extra of that name."""

    @model_validator(mode="after")
    def _ends(self) -> OptimSettings:
        if self.epochs is None and self.max_steps is None and self.seconds is None:
            raise ValueError("nothing ends the run: set epochs, max_steps or seconds")
        if self.optimizer != "muon" and "muon_momentum" in self.model_fields_set:
            warnings.warn(f"muon_momentum has no effect on {self.optimizer}", stacklevel=2)
        return self

    def compute(self, device: torch.device) -> torch.dtype:
        """The dtype of activations and matrix products on `device`."""
        if self.compute_dtype == "auto":
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return torch.bfloat16 if self.compute_dtype == "bf16" else torch.float32

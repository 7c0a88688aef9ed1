"""Initial weights for training from nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def init_decay(a_log: Tensor, dt_bias: Tensor) -> None:
    """Spread the decay of a gated delta layer over 10 to 1000 tokens (Gu and Dao 2023, arXiv 2312.00752,
    section 3.6), because the reference implementation's default forgets within one token."""
    a_log.uniform_(1, 16).log_()
    dt = torch.empty_like(dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp_()
    dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))


@torch.no_grad()
def init_weights(module: nn.Module, depth: int) -> None:
    """Normal 0.02, residual projections scaled down by depth; norms stay as they were built."""
    residual = 0.02 / math.sqrt(2 * depth)
    named = dict(module.named_parameters())
    for name, p in named.items():
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            p.normal_(0, residual)
        elif name.endswith("A_log"):
            init_decay(p, named[name.removesuffix("A_log") + "dt_bias"])
        elif name.endswith("conv1d.weight"):
            p.uniform_(-0.5, 0.5)
        elif p.dim() >= 2:
            p.normal_(0, 0.02)

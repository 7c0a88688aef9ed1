"""AdamW, and Muon for the matrices with AdamW for the rest, under one learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from paceline.train.loop.distributed import like, whole
from paceline.train.settings.optim import OptimSettings

# Coefficients of the quintic Newton-Schulz step, from the Muon optimiser's public description (Jordan, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_TABLES = ("embed_tokens.weight", "lm_head.weight")
_NARROW = ("in_proj_a.weight", "in_proj_b.weight")
"""One row a head: gates, for which an update with equal singular values makes no sense."""


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of each matrix of g [n, r, c] towards 1; in bf16 on a GPU, else in fp32."""
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, for matrices only; all of one shape are updated together.

    The update is scaled to the RMS of AdamW's, so that one learning rate serves both (Liu et al., 2025).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. A closure is not called."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for params in shapes.values():
                self._update(params, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, params: list[Tensor], lr: float, momentum: float, decay: float) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        nesterov = torch._foreach_lerp(grads, buffers, momentum)
        update = orthogonalise(torch.stack([whole(u) for u in nesterov])).float()
        update *= -lr * 0.2 * math.sqrt(max(update.shape[-2:]))
        torch._foreach_mul_(params, 1 - lr * decay)
        torch._foreach_add_(params, [like(u, p) for u, p in zip(update.unbind(0), params, strict=True)])


def muon_takes(name: str, parameter: Tensor) -> bool:
    """Whether Muon updates this parameter: a matrix that is neither a table of tokens nor rows of gates."""
    return parameter.dim() == 2 and not name.endswith((*_TABLES, *_NARROW))


class Optimizer:
    """The optimiser of a module's trainable parameters, with its state by parameter name."""

    def __init__(self, module: nn.Module, settings: OptimSettings) -> None:
        self.named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())
        muon = [p for n, p in self.named.items() if settings.optimizer == "muon" and muon_takes(n, p)]
        chosen = {id(p) for p in muon}
        rest = [p for p in self.parameters if id(p) not in chosen]
        # Norms, biases and other vectors are not drawn to zero: nothing bounds them but the loss.
        sets = [
            {"params": [p for p in rest if p.dim() > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
        ]
        sets = [group for group in sets if group["params"]]
        self.parts: list[torch.optim.Optimizer] = []
        if muon:
            self.parts.append(Muon(muon, 0.0, settings.muon_momentum, settings.weight_decay))
        if sets:
            betas, eps = settings.betas, settings.eps
            self.parts.append(torch.optim.AdamW(sets, lr=0.0, betas=betas, eps=eps, fused=True))

    def clip(self, scale: Tensor | float, max_norm: float) -> Tensor:
        """Multiply the gradients by `scale`, then bound their joint norm; gives the norm before the bound."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(grads)) * scale
        factor = scale * (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(grads, factor)
        return norm

    def step(self, learning_rate: float) -> None:
        """Update the parameters and forget their gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            part.step()
        for p in self.parameters:
            p.grad = None

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Whole tensors on the CPU, by parameter name; every process must call it."""
        return {
            name: {key: whole(value).cpu() for key, value in self._state_of(p).items()}
            for name, p in self.named.items()
        }

    def load_state(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Continue from `state()` of a run with the same parameters, however many processes it had."""
        assert state.keys() == self.named.keys()
        names = {p: name for name, p in self.named.items()}
        for part in self.parts:
            for p in (p for group in part.param_groups for p in group["params"]):
                part.state[p] = {
                    key: value.to(p.device) if key == "step" else like(value.to(p.device), p)
                    for key, value in state[names[p]].items()
                }

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        return next((part.state[parameter] for part in self.parts if parameter in part.state), {})

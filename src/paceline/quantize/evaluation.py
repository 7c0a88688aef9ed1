"""The result of an evaluation: figures by name, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

import torch

from paceline.quantize.divergence import Compared

Acceptance = dict[str, dict[str, float | None]]
"""`acceptance_length` and `draft_acceptance_rate` by category."""


@dataclass(frozen=True, slots=True)
class GroupKL:
    """What it costs to take only this group's weights from the model."""

    kind: str
    """`depth` (a run of layers) or `part` (one kind of weights in all layers)."""
    name: str
    tensors: int
    """How many of its tensors differ from the base's."""
    kl_mean: float


@dataclass(frozen=True, slots=True)
class PositionKL:
    """Mean KL of the positions first to last of a window."""

    first: int
    last: int
    tokens: int
    kl_mean: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found; KL(base || model) in nats, over full vocabularies."""

    model: str
    base: str
    device: str
    dtype: str
    window: int
    """Longest stretch of text in one context."""
    windows: list[int]
    """Tokens of each stretch."""
    compared: Compared
    groups: list[GroupKL]
    speculative: Mapping[str, Any] | None
    acceptance: tuple[Acceptance, Acceptance] | None
    """Of the base and of the model; None where nothing was to be drafted."""

    def kl(self) -> dict[str, float]:
        """Mean, median, 99.9 % and largest KL of a token."""
        values = self.compared.kl
        ordered = values.sort().values
        last = len(ordered) - 1
        return {
            "mean": float(values.mean()),
            "median": float(ordered[last // 2] + ordered[(last + 1) // 2]) / 2,
            "p99_9": float(ordered[min(last, int(0.999 * len(ordered)))]),
            "max": float(ordered[last]),
        }

    @property
    def top1_agreement(self) -> float:
        """Share of positions at which both find the same token likeliest."""
        return float(self.compared.same_top.double().mean())

    def perplexity(self) -> dict[str, float | None]:
        """Of the text's own tokens, under either; None where no token follows another."""
        found = {"base": self.compared.nll_base, "model": self.compared.nll_model}
        return {name: _perplexity(nll) for name, nll in found.items()}

    def by_position(self) -> list[PositionKL]:
        """Mean KL over positions 0, 1, 2–3, 4–7, ... of the windows."""
        position = torch.cat([torch.arange(size) for size in self.windows])
        return list(_octaves(position, self.compared.kl))

    def categories(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """By category: the figures of `base` and `model`; empty where nothing was drafted."""
        if self.acceptance is None:
            return {}
        base, model = self.acceptance
        return {name: {"base": base[name], "model": model[name]} for name in base}

    def to_json(self) -> dict[str, Any]:
        """The object that `evaluate --json` prints."""
        return {
            "model": self.model,
            "base": self.base,
            "device": self.device,
            "dtype": self.dtype,
            "tokens": sum(self.windows),
            "window": self.window,
            "kl": self.kl(),
            "top1_agreement": self.top1_agreement,
            "perplexity": self.perplexity(),
            "kl_by_position": [asdict(row) for row in self.by_position()],
            "kl_by_group": [asdict(row) for row in self.groups],
            "speculative_config": None if self.speculative is None else dict(self.speculative),
            "acceptance": self.categories() if self.acceptance is not None else None,
        }


def _perplexity(nll: torch.Tensor) -> float | None:
    known = nll[~nll.isnan()]
    return exp(min(float(known.mean()), 700.0)) if len(known) else None


def _octaves(position: torch.Tensor, kl: torch.Tensor) -> Iterator[PositionKL]:
    first, end = 0, 1
    while first <= int(position.max()):
        inside = (position >= first) & (position < end)
        yield PositionKL(first, end - 1, int(inside.sum()), float(kl[inside].mean()))
        first, end = end, 2 * end

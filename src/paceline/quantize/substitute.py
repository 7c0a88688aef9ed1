"""A model with some of its weights taken from another: what shows which layers a quantisation hurts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from paceline.errors import PairingError
from paceline.models.base import TargetModel
from paceline.models.checkpoint import Checkpoint
from paceline.models.parts import HEAD
from paceline.models.quantized import as_plain, check_scales
from paceline.models.registry import Architecture, architecture_of, read_target_spec
from paceline.models.spec import TargetSpec

_MAY_DIFFER = {"eos_ids", "bos_id", "mtp_layers", "quantization"}
_MOST_GROUPS = 8


@dataclass(frozen=True, slots=True)
class _Mixed(Checkpoint):
    """The base's folder, `chosen` of whose tensors are read from another checkpoint."""

    base: Checkpoint
    model: Checkpoint
    chosen: frozenset[str]
    renamed: Callable[[str], str]
    """The model's name of a tensor of the base."""

    def weight(self, name: str) -> torch.Tensor:
        """Read one tensor into CPU memory, decoded where it is quantised."""
        if name in self.chosen:
            return self.model.weight(self.renamed(name))
        return self.base.weight(name)


class Pair:
    """A base and a model of the same shape, whose text towers can be loaded in any mixture."""

    def __init__(self, base: Path, model: Path, device: torch.device) -> None:
        """Raises: PairingError where the shapes differ; the errors of `models.registry` for bad folders."""
        self.spec = read_target_spec(base)
        _check_same(base, self.spec, model, read_target_spec(model, self.spec.dtype))
        self._base, self._model = (as_plain(Checkpoint.open(folder)) for folder in (base, model))
        self._architecture = _common_architecture(base, self._base, model, self._model)
        others = self._architecture.others
        for checkpoint in (self._base, self._model):
            check_scales(checkpoint, skipped=others)
        self.device = device
        self.names = [name for name in self._base.tensors if not name.startswith(others)]
        if self.spec.tied:  # the table is read once and serves as both
            self.names = [name for name in self.names if name != HEAD]

    def load(self, chosen: Collection[str], max_positions: int) -> TargetModel:
        """The base with the tensors `chosen` (the base's names) of the model; `names` gives the model."""
        base = self._base
        tensors = {name: base.tensors[name] for name in self.names}
        mixed = _Mixed(
            base.path,
            base.config,
            base.generation_config,
            tensors,
            base,
            self._model,
            frozenset(chosen),
            self._renamed,
        )
        deterministic = self.device.type == "cpu"
        return self._architecture.load(mixed, self.spec, self.device, deterministic, max_positions)

    def differing(self) -> list[str]:
        """Names of tensors whose values differ; reads both models once, tensor by tensor."""
        return [name for name in self.names if not torch.equal(*self._both(name))]

    def _both(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = self.spec.dtype
        other = self._model.weight(self._renamed(name))
        return self._base.weight(name).to(dtype), other.to(dtype)

    def groups(self) -> list[tuple[str, str, list[str]]]:
        """(`depth` or `part`, name, tensors) of every group: runs of layers, then kinds of weights."""
        prefix = f"{self._architecture.text_prefix(self._base)}layers."
        layers = self.spec.num_layers
        size = -(-layers // min(layers, _MOST_GROUPS))
        found = []
        for first in range(0, layers, size):
            last = min(first + size, layers) - 1
            inside = tuple(f"{prefix}{i}." for i in range(first, last + 1))
            title = f"layers {first}–{last}" if last > first else f"layer {first}"
            found.append(("depth", title, [n for n in self.names if n.startswith(inside)]))
        parts = [("attention", ".self_attn."), ("MLP", ".mlp.")]
        if self.spec.linear_layers:
            parts.insert(0, ("linear attention", ".linear_attn."))
        found += [("part", title, [n for n in self.names if sign in n]) for title, sign in parts]
        rest = [n for n in self.names if not n.startswith(prefix)]
        return [*found, ("part", "embedding and head", rest)]

    def _renamed(self, name: str) -> str:
        """The model's name of a tensor of the base: one may have the wrapper's names, the other plain
        ones."""
        prefix = self._architecture.text_prefix
        theirs, ours = prefix(self._model), prefix(self._base)
        return theirs + name.removeprefix(ours) if name.startswith(ours) else name


def _common_architecture(base: Path, ours: Checkpoint, model: Path, theirs: Checkpoint) -> Architecture:
    found = architecture_of(base, ours.config)
    if architecture_of(model, theirs.config) is not found:
        raise PairingError(
            f"{model} is no version of {base}: model_type is {theirs.config.get('model_type')!r} here and "
            f"{ours.config.get('model_type')!r} there; give --against the model that it was made from"
        )
    return found


def _check_same(base: Path, ours: TargetSpec, model: Path, theirs: TargetSpec) -> None:
    for field in fields(ours):
        a, b = getattr(ours, field.name), getattr(theirs, field.name, None)
        if field.name not in _MAY_DIFFER and a != b:
            raise PairingError(
                f"{model} is no version of {base}: {field.name} is {b} here and {a} there; give --against "
                "the model that it was made from"
            )

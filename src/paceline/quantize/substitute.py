"""A model with some of its weights taken from another: what shows which layers a quantisation hurts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from paceline.errors import PairingError
from paceline.models import qwen3_5, qwen3_5_config
from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import as_plain, check_scales
from paceline.models.qwen3_5 import Qwen35Model
from paceline.models.registry import read_target_spec
from paceline.models.spec import TargetSpec

_MAY_DIFFER = {"eos_ids", "bos_id", "mtp_layers", "quantization"}
_MOST_GROUPS = 8
_TEXT_ONLY = (qwen3_5_config.MTP_PREFIX, *qwen3_5_config.VISION_PREFIXES)


@dataclass(frozen=True, slots=True)
class _Mixed(Checkpoint):
    """The base's folder, `chosen` of whose tensors are read from another checkpoint."""

    base: Checkpoint
    model: Checkpoint
    chosen: frozenset[str]

    def weight(self, name: str) -> torch.Tensor:
        """Read one tensor into CPU memory, decoded where it is quantised."""
        if name in self.chosen:
            return self.model.weight(_renamed(name, self.base, self.model))
        return self.base.weight(name)


class Pair:
    """A base and a model of the same shape, whose text towers can be loaded in any mixture."""

    def __init__(self, base: Path, model: Path, device: torch.device) -> None:
        """Raises: PairingError where the shapes differ; the errors of `models.registry` for bad folders."""
        self.spec = read_target_spec(base)
        _check_same(base, self.spec, model, read_target_spec(model, self.spec.dtype))
        self._base, self._model = (as_plain(Checkpoint.open(folder)) for folder in (base, model))
        for checkpoint in (self._base, self._model):
            check_scales(checkpoint, skipped=_TEXT_ONLY)
        self.device = device
        self.names = [name for name in self._base.tensors if not name.startswith(_TEXT_ONLY)]
        if self.spec.tied:  # the table is read once and serves as both
            self.names = [name for name in self.names if name != qwen3_5_config.HEAD]

    def load(self, chosen: Collection[str], max_positions: int) -> Qwen35Model:
        """The base with the tensors `chosen` (the base's names) of the model; `names` gives the model."""
        base = self._base
        tensors = {name: base.tensors[name] for name in self.names}
        mixed = _Mixed(
            base.path, base.config, base.generation_config, tensors, base, self._model, frozenset(chosen)
        )
        return qwen3_5.load(mixed, self.spec, self.device, self.device.type == "cpu", max_positions)

    def differing(self) -> list[str]:
        """Names of tensors whose values differ; reads both models once, tensor by tensor."""
        return [name for name in self.names if not torch.equal(*self._both(name))]

    def _both(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = self.spec.dtype
        other = self._model.weight(_renamed(name, self._base, self._model))
        return self._base.weight(name).to(dtype), other.to(dtype)

    def groups(self) -> list[tuple[str, str, list[str]]]:
        """(`depth` or `part`, name, tensors) of every group: runs of layers, then kinds of weights."""
        prefix = f"{qwen3_5_config.text_prefix(self._base)}layers."
        layers = self.spec.num_layers
        size = -(-layers // min(layers, _MOST_GROUPS))
        found = []
        for first in range(0, layers, size):
            last = min(first + size, layers) - 1
            inside = tuple(f"{prefix}{i}." for i in range(first, last + 1))
            title = f"layers {first}–{last}" if last > first else f"layer {first}"
            found.append(("depth", title, [n for n in self.names if n.startswith(inside)]))
        for title, sign in (
            ("linear attention", ".linear_attn."),
            ("attention", ".self_attn."),
            ("MLP", ".mlp."),
        ):
            found.append(("part", title, [n for n in self.names if sign in n]))
        rest = [n for n in self.names if not n.startswith(prefix)]
        return [*found, ("part", "embedding and head", rest)]


def _renamed(name: str, base: Checkpoint, model: Checkpoint) -> str:
    """The model's name of a tensor of the base: one may have the wrapper's names, the other plain ones."""
    theirs, ours = (qwen3_5_config.text_prefix(checkpoint) for checkpoint in (model, base))
    return theirs + name.removeprefix(ours) if name.startswith(ours) else name


def _check_same(base: Path, ours: TargetSpec, model: Path, theirs: TargetSpec) -> None:
    for field in fields(TargetSpec):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name not in _MAY_DIFFER and a != b:
            raise PairingError(
                f"{model} is no version of {base}: {field.name} is {b} here and {a} there; give --against "
                "the model that it was made from"
            )

"""Measuring the largest input of each linear layer, with one layer of the model in memory at a time.

All samples go through layer 0, then all through layer 1, and so on, so each weight is read once and only the
hidden states of the samples are kept (samples · tokens · hidden size · 2 bytes). The layers are
transformers', unquantised, as in nvidia-modelopt's `max` calibration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.errors import CheckpointError
from paceline.quantize.samples import Calibration, load_samples
from paceline.quantize.stored import PlainView
from paceline.quantize.stream import Progress

__all__ = ["Calibration", "measure_inputs"]

_CLASSES = {
    "qwen3_5_text": ("qwen3_5", "Qwen3_5", "TextRotaryEmbedding"),
    "llama": ("llama", "Llama", "RotaryEmbedding"),
    "qwen2": ("qwen2", "Qwen2", "RotaryEmbedding"),
    "qwen3": ("qwen3", "Qwen3", "RotaryEmbedding"),
}
"""transformers' module, the beginning of its classes' names, and the name of the rotary one."""
_THREE_ROWS = ("qwen3_5_text",)
"""What takes positions in time, height and width."""


@torch.inference_mode()
def measure_inputs(
    model: Path,
    view: PlainView,
    modules: Collection[str],
    calibration: Calibration,
    progress: Progress | None = None,
) -> dict[str, float]:
    """The largest magnitude that goes into each of `modules` over all samples.

    Raises: ConfigError for bad samples or options, CheckpointError for activations that are not finite.
    """
    config = _text_config(model)
    samples = load_samples(model, calibration, config.max_position_embeddings)
    prefix = _prefix(view)
    run = _Run(view, prefix, config, torch.device(calibration.device), set(modules))
    states = run.embed(samples)
    layers = config.num_hidden_layers
    for i in range(layers):
        run.layer(i, states)
        if progress is not None:
            progress(f"calibration, layer {i}", i + 1, layers)
    if "lm_head" in modules:
        run.head(states)
    missing = sorted(set(modules) - set(run.amax))
    assert not missing, f"calibration never reached {missing[:3]}"
    for module, amax in run.amax.items():
        if not 0 < amax < float("inf"):
            raise CheckpointError(
                f"{model}: the input of {module} is {amax} at its largest on the calibration samples; "
                "the weights or the samples are broken"
            )
    return run.amax


class _Run:
    """The samples on their way through the model."""

    def __init__(
        self, view: PlainView, prefix: str, config: Any, device: torch.device, modules: Collection[str]
    ) -> None:
        self.amax: dict[str, float] = {}
        self._view, self._prefix, self._config = view, prefix, config
        self._device, self._modules = device, modules
        embedding = view.tensors[f"{prefix}embed_tokens.weight"]
        self._dtype = torch.float32 if embedding.dtype == "F32" else torch.bfloat16

    def embed(self, samples: list[list[int]]) -> list[torch.Tensor]:
        """Hidden states [1, T, H] of each sample."""
        table = self._read(f"{self._prefix}embed_tokens.weight")
        return [nn.functional.embedding(torch.tensor([ids], device=table.device), table) for ids in samples]

    def layer(self, index: int, states: list[torch.Tensor]) -> None:
        """All samples through one layer; `states` becomes what comes out."""
        prefix = f"{self._prefix}layers.{index}."
        with torch.device("meta"), _quiet():
            layer = self._class("DecoderLayer")(self._config, index)
        weights = {name: self._read(prefix + name) for name in layer.state_dict()}
        layer.load_state_dict(weights, assign=True)
        rotary = self._class(_CLASSES[self._config.model_type][2])(self._config).to(self._device)
        with self._watched(layer, prefix), _quiet():
            for i, state in enumerate(states):  # in place: one copy of all hidden states, not two
                states[i] = layer(state, position_embeddings=self._rotation(rotary, state))

    def head(self, states: list[torch.Tensor]) -> None:
        """What goes into `lm_head`: the normed hidden states."""
        norm = self._class("RMSNorm")(self._config.hidden_size, eps=self._config.rms_norm_eps)
        norm.load_state_dict({"weight": self._read(f"{self._prefix}norm.weight")}, assign=True)
        for state in states:
            self._note("lm_head", norm(state))

    def _class(self, name: str) -> Any:
        """transformers' class of that name for the model's architecture."""
        folder, start, _ = _CLASSES[self._config.model_type]
        module = import_module(f"transformers.models.{folder}.modeling_{folder}")
        return getattr(module, start + name)

    def _rotation(self, rotary: nn.Module, state: torch.Tensor) -> Any:
        positions = torch.arange(state.shape[1], device=state.device)[None]
        if self._config.model_type in _THREE_ROWS:
            positions = positions.expand(3, 1, -1)
        return rotary(state, positions)

    def _read(self, name: str) -> torch.Tensor:
        return self._view.read(name).to(self._device, self._dtype)

    def _note(self, module: str, value: torch.Tensor) -> None:
        if module in self._modules:
            largest = float(value.abs().amax())
            self.amax[module] = largest if largest != largest else max(largest, self.amax.get(module, 0.0))

    def _note_input(self, name: str, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._note(name, inputs[0])

    @contextmanager
    def _watched(self, layer: nn.Module, prefix: str) -> Iterator[None]:
        """Note the input of every linear layer inside `layer` while this is open."""
        handles = []
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                hook = partial(self._note_input, prefix + name)
                handles.append(module.register_forward_pre_hook(hook))
        yield
        for handle in handles:
            handle.remove()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' advice to install kernels that this pass does not need."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


def _text_config(model: Path) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(model)).get_text_config()
    config._attn_implementation = "sdpa"  # causal by itself where no mask is given
    return config


def _prefix(view: PlainView) -> str:
    nested = "model.language_model."
    return nested if any(name.startswith(nested) for name in view.tensors) else "model."

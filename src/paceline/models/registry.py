"""Opening and loading models by what their `config.json` says they are.

`read_*` functions do every check that needs no weight; `load_*` functions do the same checks, then load.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.config.model import Quantization
from paceline.errors import UnsupportedModelError
from paceline.models import dense, dense_config, dflash, dflash_config, mtp, qwen3_5, qwen3_5_config
from paceline.models.base import TargetModel
from paceline.models.checkpoint import Checkpoint, read_config
from paceline.models.dflash import DFlashDrafter
from paceline.models.fields import Fields
from paceline.models.mtp import MTPHead
from paceline.models.quantized import QuantizedCheckpoint, as_plain
from paceline.models.spec import DrafterSpec, MTPSpec, TargetSpec


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the targets of one kind are read and loaded."""

    title: str
    read_spec: Callable[[Checkpoint, str | torch.dtype], TargetSpec]
    load: Callable[[Checkpoint, TargetSpec, torch.device, bool, int | None], TargetModel]
    """(checkpoint, spec, device, deterministic, max_positions)"""
    text_prefix: Callable[[Checkpoint], str]
    """Where the language model's tensors live; its head lies outside."""
    others: tuple[str, ...] = ()
    """Prefixes of tensors that are not the language model's."""


_HYBRID = Architecture(
    "Qwen3.5 / Qwen3.6, dense",
    qwen3_5_config.read_spec,
    qwen3_5.load,
    qwen3_5_config.text_prefix,
    (qwen3_5_config.MTP_PREFIX, *qwen3_5_config.VISION_PREFIXES),
)
_DENSE = Architecture(
    "Llama, Qwen2 and Qwen3, dense", dense_config.read_spec, dense.load, dense_config.text_prefix
)
ARCHITECTURES: Mapping[str, Architecture] = {
    "qwen3_5": _HYBRID,
    "qwen3_5_text": _HYBRID,
    **dict.fromkeys(dense_config.MODEL_TYPES, _DENSE),
}
"""By the `model_type` of config.json."""


def architecture_of(path: str | Path, config: Mapping[str, Any]) -> Architecture:
    """How the target in folder `path` with this config.json is read.

    Raises: UnsupportedModelError naming the kinds that paceline runs.
    """
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in ARCHITECTURES:
        return ARCHITECTURES[kind]
    named = Fields(f"{path}/config.json", config).names("architectures")
    titles = " and ".join(dict.fromkeys(known.title for known in ARCHITECTURES.values()))
    raise UnsupportedModelError(
        f"{path}: model_type {kind!r} ({', '.join(named) or 'no architectures'}) is not supported; "
        f"paceline runs {', '.join(ARCHITECTURES)} ({titles})"
    )


def read_target_spec(
    path: str | Path, dtype: str | torch.dtype = "auto", quantization: Quantization = "auto"
) -> TargetSpec:
    """The numbers of the target in folder `path`, without loading it.

    Raises: CheckpointError or UnsupportedModelError, each one line that names the folder; ConfigError where
    it is quantised otherwise than `quantization` says.
    """
    opened = _open_target(path)
    return architecture_of(path, opened.config).read_spec(as_plain(opened, quantization), dtype)


def load_target(
    path: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    *,
    max_positions: int | None = None,
    quantization: Quantization = "auto",
    keep_packed: bool = False,
) -> TargetModel:
    """Load the target in folder `path`.

    dtype: "auto" (as the config says), "bfloat16" or "float32". deterministic: a row's result does not
    depend on the other rows of its call. max_positions: longest sequence that will be run (smaller rotary
    tables). quantization: how the checkpoint must be quantised. keep_packed: leave weights in 4 bits where
    they can be multiplied so; the results are the same.

    Raises: CheckpointError or UnsupportedModelError, before any weight is loaded.
    """
    checkpoint = as_plain(_open_target(path), quantization, keep_packed)
    _warn_of_no_effect(checkpoint, keep_packed)
    known = architecture_of(path, checkpoint.config)
    spec = known.read_spec(checkpoint, dtype)
    return known.load(checkpoint, spec, torch.device(device), deterministic, max_positions)


def read_drafter_spec(
    path: str | Path, target: TargetSpec, num_speculative_tokens: int | None = None
) -> DrafterSpec:
    """The numbers of the DFlash drafter in folder `path`, after all pairing checks against `target`.

    Raises: PairingError where it does not fit the target or cannot draft `num_speculative_tokens`,
    UnsupportedModelError for another kind of drafter, CheckpointError for a bad folder.
    """
    return dflash_config.read_spec(as_plain(Checkpoint.open(path)), target, num_speculative_tokens)


def load_drafter(
    path: str | Path,
    target: TargetSpec,
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    *,
    num_speculative_tokens: int | None = None,
    max_positions: int | None = None,
    keep_packed: bool = False,
) -> DFlashDrafter:
    """Load the DFlash drafter in folder `path` in the target's dtype; errors as in `read_drafter_spec`."""
    checkpoint = as_plain(Checkpoint.open(path), keep_packed=keep_packed)
    spec = dflash_config.read_spec(checkpoint, target, num_speculative_tokens)
    dflash_config.warn_of_oddities(checkpoint, target)
    return dflash.load(checkpoint, spec, torch.device(device), deterministic, max_positions)


def read_mtp_spec(path: str | Path, target: TargetSpec, quantization: Quantization = "auto") -> MTPSpec:
    """The numbers of the multi-token head stored inside the target's folder `path`.

    Raises: PairingError where there is none or a tensor is missing, CheckpointError for a mis-shaped tensor.
    """
    return mtp.read_spec(as_plain(Checkpoint.open(path), quantization), target)


def load_mtp(
    path: str | Path,
    target: TargetModel,
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    *,
    max_positions: int | None = None,
    quantization: Quantization = "auto",
    keep_packed: bool = False,
) -> MTPHead:
    """Load the multi-token head inside the target's folder `path`; errors as in `read_mtp_spec`."""
    checkpoint = as_plain(Checkpoint.open(path), quantization, keep_packed)
    spec = mtp.read_spec(checkpoint, target.spec)
    return mtp.load(checkpoint, spec, target, torch.device(device), deterministic, max_positions)


def _open_target(path: str | Path) -> Checkpoint:
    """Refuse another architecture by name, before its weights are looked at."""
    architecture_of(path, read_config(Path(path)))
    return Checkpoint.open(path)


def _warn_of_no_effect(checkpoint: Checkpoint, keep_packed: bool) -> None:
    """Say what was asked for, by the user or the checkpoint, and changes nothing here."""
    quantized = checkpoint if isinstance(checkpoint, QuantizedCheckpoint) else None
    if keep_packed and not (quantized and quantized.has_four_bits):
        warnings.warn(
            f"{checkpoint.path} has no weights in 4 bits: quantized_weights = 'packed' has no effect on it",
            RuntimeWarning,
            stacklevel=3,
        )
    if quantized and quantized.kv_cache:
        warnings.warn(
            f"{checkpoint.path}: keys and values are to be stored as {quantized.kv_cache}; paceline keeps "
            "them in the model's dtype, which loses nothing",
            stacklevel=3,
        )

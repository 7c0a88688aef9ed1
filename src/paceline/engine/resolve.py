"""From a configuration to decisions: folders, device, sizes. Reads headers alone, loads no weight."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.cache.tensors import CacheShape
from paceline.config.cache import CacheConfig
from paceline.config.engine import PREFILL_CHUNK, EngineConfig
from paceline.engine.prefix import reuse_unit
from paceline.errors import ConfigError
from paceline.models.checkpoint import read_json
from paceline.models.hub import resolve_model
from paceline.models.registry import read_drafter_spec, read_mtp_spec, read_target_spec
from paceline.models.spec import DrafterSpec, MTPSpec, TargetSpec


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration with every default decided, from headers alone."""

    config: EngineConfig
    folder: Path
    drafter_folder: Path | None
    device: torch.device
    deterministic: bool
    spec: TargetSpec
    drafter: DrafterSpec | None
    mtp: MTPSpec | None
    num_drafts: int
    max_model_len: int
    shape: CacheShape

    @property
    def prefill_cell(self) -> int | None:
        """Deterministic mode reads prompts in cells of this many tokens; None: cut anywhere."""
        return PREFILL_CHUNK if self.deterministic else None

    @property
    def num_checkpoints(self) -> int:
        """States that are kept for prefix reuse; 0 where it is off, or where the blocks hold all there is:
        without recurrent layers, and without a multi-token head, which needs a hidden row to go on from."""
        cache = self.config.cache
        if not cache.enable_prefix_caching or not (self.spec.linear_layers or self.mtp):
            return 0
        running = self.config.max_num_seqs * (1 if self.deterministic else 2)  # answers leave one as well
        return cache.prefix_checkpoints or max(running, 4)

    @property
    def keep_packed(self) -> bool:
        """Whether 4-bit weights are to stay packed, where that can be multiplied."""
        return self.config.model.quantized_weights == "packed"

    @property
    def looks_back(self) -> bool:
        """Whether drafts follow the text's own past; for a single one it gained nothing measurable."""
        speculative = self.config.speculative
        return speculative is not None and speculative.looks_back and self.num_drafts > 1

    @property
    def positions(self) -> int:
        """Positions that may be written: the model's length, the last window's drafts, the look-ahead."""
        span = self.drafter.block_size if self.drafter else 0
        return self.max_model_len + max(self.num_drafts + 2, span)


def resolve(config: EngineConfig) -> Resolved:
    """Read what the folders say and decide every default; loads no weight.

    Raises the typed errors of `paceline.errors` for whatever does not fit together.
    """
    device = pick_device(config.model.device)
    folder = resolve_model(config.model.model)
    spec = read_target_spec(folder, config.model.dtype, config.model.quantization)
    drafter, mtp, drafter_folder, num_drafts = None, None, None, 0
    speculative = config.speculative
    if speculative:
        if speculative.method == "dflash":
            assert speculative.model is not None
            drafter_folder = resolve_model(speculative.model, "drafter")
            drafter = read_drafter_spec(drafter_folder, spec, speculative.num_speculative_tokens)
        elif speculative.method == "mtp":
            mtp = read_mtp_spec(folder, spec, config.model.quantization)
        num_drafts = speculative.draft_tokens(drafter.block_size if drafter else None)
    longest = config.model.max_model_len or spec.max_position
    if longest > spec.max_position:
        raise ConfigError(
            f"max_model_len = {longest} is more than this model's {spec.max_position} positions",
            key="max_model_len",
        )
    deterministic = config.is_deterministic(device.type)
    _check_checkpoints(config.cache, deterministic, needed=bool(spec.linear_layers or mtp))
    shape = CacheShape.of(
        spec, drafter, mtp,
        block_size=config.cache.block_size,
        num_drafts=num_drafts,
        kv_dtype=None if config.cache.kv_dtype == "auto" else getattr(torch, config.cache.kv_dtype),
    )  # fmt: skip
    return Resolved(
        config, folder, drafter_folder, device, deterministic,
        spec, drafter, mtp, num_drafts, longest, shape,
    )  # fmt: skip


def _check_checkpoints(cache: CacheConfig, deterministic: bool, needed: bool) -> None:
    """Warn of checkpoint options that do nothing; raises `ConfigError` for an interval off the blocks."""
    reason = None
    if not cache.enable_prefix_caching:
        reason = "prefix caching is off: set enable_prefix_caching"
    elif not needed:
        reason = "a prefix of a model without recurrent layers is in its blocks"
    for key in ("prefix_checkpoints", "prefix_checkpoint_interval"):
        if reason and getattr(cache, key) is not None:
            warnings.warn(f"{key} has no effect: {reason}", RuntimeWarning, stacklevel=3)
    interval, unit = cache.prefix_checkpoint_interval, reuse_unit(cache.block_size, deterministic)
    if interval is not None and interval % unit:
        cells = f" and of {PREFILL_CHUNK} in deterministic mode" if deterministic else ""
        raise ConfigError(
            f"prefix_checkpoint_interval = {interval} must be a multiple of block_size = {cache.block_size}"
            f"{cells}: use {-(-interval // unit) * unit}",
            key="prefix_checkpoint_interval",
        )


def pick_device(wanted: str) -> torch.device:
    """The device that `wanted` (auto, cpu or cuda) means here. Raises: ConfigError for cuda without one."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError("device = 'cuda', but no CUDA device is available: use --device cpu", key="device")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and available) else "cpu")


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The folder's generation_config.json; empty where there is none."""
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}

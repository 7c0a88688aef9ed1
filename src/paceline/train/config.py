"""Configuration of a training run: one YAML file, strict and frozen, an unknown key is an error.

The file has one section a stage (``tokenizer``, ``split``, ``target``, ``data``, ``mtp``, ``drafter``) and
the list of ``sources`` whose origin and licence the manifest repeats. Every stage has a wall-clock budget in
seconds and a cap in optimiser steps; whichever comes first ends it, and the learning rate falls to zero at
that point.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import ConfigError

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Base of every section: frozen, strict types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class SourceConfig(Section):
    """One corpus file and the facts about it that the manifest has to state."""

    file: str
    kind: str
    licence: str
    origin: str
    obtain: str


class TokenizerConfig(Section):
    """Byte-level BPE. ``vocab_size`` counts the tokenizer's own ids; the model's table may be larger."""

    vocab_size: Annotated[int, Field(ge=258)] = 4095
    min_frequency: PositiveInt = 2


class SplitConfig(Section):
    """Documents are dealt by the hash of their text, source by source.

    ``held_out`` is never trained on; ``draft_pool`` is unseen by the target but may start the continuations
    that the drafters learn from, so that these also come from text which the target has not memorised.
    """

    held_out: Fraction = 0.015
    draft_pool: Fraction = 0.03
    max_document_bytes: PositiveInt = 65536
    seed: int = 0


class BudgetConfig(Section):
    """When a training stage ends and how it steps."""

    seconds: PositiveFloat
    max_steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat = 3e-3
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    warmup: Fraction = 0.02
    seed: int = 0


class TargetConfig(Section):
    """Shape of the qwen3_5 target (names as in its config.json) and its training."""

    hidden_size: PositiveInt = 320
    intermediate_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    full_attention_interval: PositiveInt = 4
    num_attention_heads: PositiveInt = 5
    num_key_value_heads: PositiveInt = 1
    head_dim: PositiveInt = 64
    partial_rotary_factor: Fraction = 0.25
    rope_theta: PositiveFloat = 10000.0
    linear_num_key_heads: PositiveInt = 2
    linear_num_value_heads: PositiveInt = 4
    linear_key_head_dim: PositiveInt = 64
    linear_value_head_dim: PositiveInt = 64
    linear_conv_kernel_dim: PositiveInt = 4
    vocab_size: PositiveInt = 4096
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: PositiveFloat = 1e-6
    sequence_length: PositiveInt = 2048
    training: BudgetConfig

    @model_validator(mode="after")
    def _check(self) -> TargetConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError("linear_num_value_heads must be a multiple of linear_num_key_heads")
        if self.rotary_dim % 2 or self.rotary_dim == 0:
            raise ValueError("head_dim * partial_rotary_factor must be even and positive")
        return self

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def layer_types(self) -> tuple[str, ...]:
        """``full_attention`` for every ``full_attention_interval``-th layer, else ``linear_attention``."""
        every = self.full_attention_interval
        return tuple(
            "linear_attention" if (i + 1) % every else "full_attention" for i in range(self.num_hidden_layers)
        )


class DataConfig(Section):
    """Continuations by the target. ``greedy``, ``sampled`` and ``started`` are shares of the rows: all
    greedy, sampled at ``temperature``, and greedy after ``started_tokens`` tokens sampled at temperature 1
    (novel contexts)."""

    sequences: PositiveInt
    seconds: PositiveFloat
    batch_size: PositiveInt = 4096
    length: PositiveInt = 512
    prefix_lengths: tuple[PositiveInt, ...] = (32, 96, 160, 256)
    greedy: Fraction = 0.5
    sampled: Fraction = 0.25
    started: Fraction = 0.25
    started_tokens: PositiveInt = 48
    temperature: PositiveFloat = 0.8
    pool_share: Fraction = 0.5
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if abs(self.greedy + self.sampled + self.started - 1.0) > 1e-6:
            raise ValueError("greedy + sampled + started must be 1")
        if max(self.prefix_lengths) + 2 > self.length:
            raise ValueError("prefix_lengths must leave room inside length")
        return self


class MtpConfig(Section):
    """Multi-token-prediction head: ``steps`` predictions by feeding its own output back."""

    steps: PositiveInt = 3
    training: BudgetConfig


class DrafterConfig(Section):
    """Shape of the DFlash drafter (published names) and its training."""

    num_hidden_layers: PositiveInt = 2
    intermediate_size: PositiveInt = 768
    num_attention_heads: PositiveInt = 5
    num_key_value_heads: PositiveInt = 1
    head_dim: PositiveInt = 64
    rope_theta: PositiveFloat = 10000.0
    rms_norm_eps: PositiveFloat = 1e-6
    block_size: Annotated[int, Field(ge=2)] = 8
    target_layer_ids: tuple[Annotated[int, Field(ge=0)], ...] = (1, 4, 7, 9)
    mask_token_id: Annotated[int, Field(ge=0)] = 4095
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] = (
        "full_attention",
        "full_attention",
    )
    sliding_window: PositiveInt | None = None
    num_anchors: PositiveInt = 64
    weighting: Literal["decay", "dpace"] = "dpace"
    decay_gamma: PositiveFloat = 4.0
    dpace_alpha: Fraction = 0.5
    training: BudgetConfig

    @model_validator(mode="after")
    def _check(self) -> DrafterConfig:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError("layer_types needs one entry a layer")
        if "sliding_attention" in self.layer_types and self.sliding_window is None:
            raise ValueError("sliding_attention layers need sliding_window")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        return self


class DemoConfig(Section):
    """The whole file."""

    name: str
    sources: tuple[SourceConfig, ...] = ()
    tokenizer: TokenizerConfig = TokenizerConfig()
    split: SplitConfig = SplitConfig()
    target: TargetConfig
    data: DataConfig
    mtp: MtpConfig
    drafter: DrafterConfig

    @model_validator(mode="after")
    def _check(self) -> DemoConfig:
        if self.tokenizer.vocab_size > self.target.vocab_size:
            raise ValueError("tokenizer.vocab_size exceeds target.vocab_size")
        if not self.tokenizer.vocab_size <= self.drafter.mask_token_id < self.target.vocab_size:
            raise ValueError("drafter.mask_token_id must be a table row that the tokenizer does not name")
        if max(self.drafter.target_layer_ids) >= self.target.num_hidden_layers:
            raise ValueError("drafter.target_layer_ids names a layer that the target lacks")
        return self


def load_config(path: str | Path) -> DemoConfig:
    """Read a YAML file. Raises ConfigError that names the file and the key."""
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as exc:
        raise ConfigError(f"cannot read {path}: {' '.join(str(exc).split())}") from exc
    try:
        # Through JSON, because strict mode takes no list for a tuple except from JSON.
        return DemoConfig.model_validate_json(json.dumps(raw))
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigError(f"{path}: {key}: {first['msg']}", key=key) from exc

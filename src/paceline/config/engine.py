"""The whole engine's configuration: the layers below, plus how steps are filled."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from paceline.config.base import StrictModel
from paceline.config.cache import CacheConfig
from paceline.config.model import ModelConfig
from paceline.config.sampling import MAX_SEED, MIN_SEED
from paceline.config.speculative import SpeculativeConfig
from paceline.errors import ConfigError

PREFILL_CHUNK = 64  # deterministic prefill is cut at absolute multiples of this


class EngineConfig(StrictModel):
    """Everything that decides what the engine does; requests add only their sampling parameters."""

    model: ModelConfig = Field(description="The target model.")
    cache: CacheConfig = Field(
        default_factory=lambda: CacheConfig(), description="Blocks, slots and host memory."
    )
    speculative: SpeculativeConfig | None = Field(None, description="The proposer; absent: plain decoding.")
    max_num_seqs: int = Field(16, ge=1, description="Sequences that run at once.")
    max_num_batched_tokens: int = Field(
        2048,
        ge=PREFILL_CHUNK,
        description="Rows of one step: prompt chunks and windows together.",
    )
    deterministic: bool | None = Field(
        None,
        description="Make a request's arithmetic independent of batch and drafts; "
        "absent: on for cpu, off for cuda.",
    )
    seed: int | None = Field(
        None,
        ge=MIN_SEED,
        le=MAX_SEED,
        description="Seed of requests that bring none; absent: each draws a random one and reports it.",
    )

    @model_validator(mode="after")
    def _layers_agree(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} must be at least "
                f"max_num_seqs = {self.max_num_seqs}: every running sequence takes a row of each step",
                key="max_num_batched_tokens",
            )
        head = self.speculative
        if head and head.method == "mtp" and head.model not in (None, self.model.model):
            raise ConfigError(
                f"method 'mtp' uses the head inside MODEL: leave out 'model', or give {self.model.model!r}, "
                f"not {head.model!r}",
                key="model",
            )
        return self

    def is_deterministic(self, device: str) -> bool:
        """Whether deterministic mode is on for a resolved device ("cpu" or "cuda")."""
        return device == "cpu" if self.deterministic is None else self.deterministic

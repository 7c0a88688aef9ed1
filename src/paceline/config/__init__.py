"""Frozen, strict configuration in layers: model, cache, speculative, engine; sampling is a request's own."""

from __future__ import annotations

from paceline.config.cache import CacheConfig
from paceline.config.engine import EngineConfig
from paceline.config.model import ModelConfig
from paceline.config.sampling import SamplingParams
from paceline.config.speculative import SpeculativeConfig

__all__ = ["CacheConfig", "EngineConfig", "ModelConfig", "SamplingParams", "SpeculativeConfig"]

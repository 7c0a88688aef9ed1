"""Settings of `paceline train eval`: what is measured of a target and its proposers, and where it goes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from paceline.config.sampling import MAX_FACTOR, MAX_SEED
from paceline.config.speculative import SpeculativeConfig
from paceline.train.settings.base import Section
from paceline.train.settings.data import Text
from paceline.train.settings.optim import PositiveInt


class TextSettings(Section):
    """The section ``answers``: how the model answers a file of prompts, greedily."""

    prompts: Text | None = None
    """JSON lines with `prompt` and `category`; absent: the 72 bench prompts that come with paceline."""
    max_tokens: PositiveInt = 300
    """An answer that is cut off here has not stopped by itself."""
    thinking: bool = False


class SkillSettings(Section):
    """One section a skill: how many generated questions, and how long an answer may be. 0 leaves it out."""

    count: Annotated[int, Field(ge=0)] = 100
    max_tokens: PositiveInt = 256


class ServingSettings(Section):
    """The section ``acceptance``: proposers to compare on the prompts of ``answers``."""

    proposers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name to what `--speculative-config` takes. The bars read the names dflash, mtp and ngram."""
    temperatures: tuple[Annotated[float, Field(ge=0, le=MAX_FACTOR)], ...] = (0.0, 0.8)
    max_tokens: PositiveInt = 192
    limit: PositiveInt | None = None
    """Prompts, taken evenly over the file; absent: all."""

    @field_validator("proposers")
    @classmethod
    def _known(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for config in value.values():
            SpeculativeConfig.parse(config)  # a typing mistake shows before an hour of measuring
        return value


class EvaluateSettings(Section):
    """A configuration of `paceline train eval`."""

    model: Text
    """The target: a local folder, a hub id, or `demo`."""
    out: Text
    """The JSON report."""
    card: Text | None = None
    """A Markdown file: the report's tables replace what stands between `<!-- figures -->` and
    `<!-- /figures -->`."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Of the generated questions and of sampling; `--seed` overrides it."""
    max_num_seqs: PositiveInt = 16
    answers: TextSettings = TextSettings()
    arithmetic: SkillSettings = SkillSettings(count=200, max_tokens=160)
    tools: SkillSettings = SkillSettings(count=100, max_tokens=256)
    extraction: SkillSettings = SkillSettings(count=100, max_tokens=320)
    word_problems: SkillSettings = SkillSettings(count=50, max_tokens=192)
    puzzles: SkillSettings = SkillSettings(count=50, max_tokens=256)
    acceptance: ServingSettings = ServingSettings()
    texts: dict[str, str] = Field(default_factory=dict)
    """Name to a UTF-8 file (`.xz` is unpacked) that nothing was trained on: perplexity."""
    text_tokens: PositiveInt = 8192
    """Tokens of each text, from its beginning."""
    runs: dict[str, str] = Field(default_factory=dict)
    """Name to the output folder of a training run, whose hardware, time and loss go into the card."""

"""Who drafts, and how far ahead. The keys are vLLM's, but for `prompt_lookup`."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from paceline.config.base import StrictModel
from paceline.errors import ConfigError

Method = Literal["dflash", "mtp", "ngram"]

METHOD_ALIASES = {"qwen3_5_mtp": "mtp"}
DEFAULT_DRAFT_TOKENS = 3  # mtp and ngram; a dflash drafter fills its block
MOST_DRAFT_TOKENS = 128  # vLLM's bound: every draft takes a row of each slot's memory
DEFAULT_PROMPT_LOOKUP = 5  # vLLM's, for both ends


class SpeculativeConfig(StrictModel):
    """One proposer and its settings."""

    method: Method = Field(
        description="dflash: a block-diffusion drafter; mtp: the model's own multi-token head "
        "(`qwen3_5_mtp` is an older name); ngram: look-up in the text so far."
    )
    model: str | None = Field(
        None,
        description="The drafter: a local folder, a hub id, `demo` or `demo-sliding`. Needed by dflash; "
        "mtp takes none, or the target's.",
    )
    num_speculative_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_DRAFT_TOKENS,
        description="Drafts a verification; absent: block_size − 1 for dflash, 3 for mtp and ngram.",
    )
    prompt_lookup_min: int | None = Field(
        None,
        ge=1,
        description="ngram: shortest match; absent: prompt_lookup_max, or 5 where both are absent.",
    )
    prompt_lookup_max: int | None = Field(
        None, ge=1, description="ngram: longest match; absent: prompt_lookup_min, or 5 where both are absent."
    )
    draft_sample_method: Literal["greedy", "coupled"] | None = Field(
        None,
        description="How dflash and mtp draw drafts at temperature > 0; greedy: their best token; "
        "coupled: with the target's own noise; absent: coupled, which measured better.",
    )
    prompt_lookup: bool | None = Field(
        None,
        description="dflash and mtp: where the text once ended as now, drafts follow what stood behind as "
        "far as the drafter finds it likely; absent: yes, which measured better. Never for a single draft.",
    )

    @field_validator("method", mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        return METHOD_ALIASES.get(value, value) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _fill_lookup(cls, values: Any) -> Any:
        """Complete the two look-up lengths: each copies the other, and both missing means 5."""
        if not isinstance(values, dict) or values.get("method") != "ngram":
            return values
        low, high = values.get("prompt_lookup_min"), values.get("prompt_lookup_max")
        if low is None and high is None:
            low = high = DEFAULT_PROMPT_LOOKUP
        filled = {
            "prompt_lookup_min": high if low is None else low,
            "prompt_lookup_max": low if high is None else high,
        }
        return {**values, **filled}

    @model_validator(mode="after")
    def _keys_of_the_method(self) -> Self:
        if self.method == "dflash" and not self.model:
            raise ConfigError(
                "method 'dflash' needs the key 'model': the drafter's folder or hub id", key="model"
            )
        if self.method == "ngram":
            self._refuse("model", "it looks up the text so far and has no model")
            self._refuse("draft_sample_method", "it draws nothing")
            self._refuse("prompt_lookup", "it does nothing else")
        else:
            self._refuse("prompt_lookup_min", "only ngram looks up text")
            self._refuse("prompt_lookup_max", "only ngram looks up text")
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"prompt_lookup_min = {low} must be at most prompt_lookup_max = {high}",
                key="prompt_lookup_min",
            )
        return self

    def _refuse(self, key: str, why: str) -> None:
        if getattr(self, key) is not None:
            raise ConfigError(f"method {self.method!r} takes no {key!r}: {why}", key=key)

    @property
    def looks_back(self) -> bool:
        """Whether a drafter's guesses follow the text's own past."""
        return self.method != "ngram" and self.prompt_lookup is not False

    def draft_tokens(self, block_size: int | None = None) -> int:
        """Drafts a verification, resolved. `block_size` is the drafter's own (dflash only).

        Raises `ConfigError` where num_speculative_tokens is more than a dflash block holds beside its anchor.
        """
        if self.method != "dflash":
            return self.num_speculative_tokens or DEFAULT_DRAFT_TOKENS
        assert block_size is not None and block_size > 1, "a dflash drafter has a block size above 1"
        most = block_size - 1
        if self.num_speculative_tokens is not None and self.num_speculative_tokens > most:
            raise ConfigError(
                f"num_speculative_tokens = {self.num_speculative_tokens} is more than this drafter can fill: "
                f"its block_size is {block_size}, so at most {most}",
                key="num_speculative_tokens",
            )
        return self.num_speculative_tokens or most

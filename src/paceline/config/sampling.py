"""How the tokens of one request are chosen and when it ends. The field names are vLLM's.

What each processor does to the logits, and in which order, stands in `paceline.speculate.processors`; how a
sequence ends stands in `paceline.engine.output`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from paceline.config.base import StrictModel
from paceline.errors import ConfigError, ModelError, RequestError

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy (vLLM's bound): dividing by it would only lose the logits' precision."""

MAX_BIAS = 100.0
MAX_CHOICES = 16_384  # vLLM's bound; all choices of a request are queued at once
MAX_FACTOR = 1e6
"""Temperature and repetition penalty at most (a penalty: 1 / this at least): float32 logits stay finite."""
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
MAX_STOPS, MAX_STOP_CHARACTERS = 256, 4096
MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS = 256, 256
"""Bounds of lists that the engine goes through at every token, on behalf of all requests."""


def _to_tuple(value: Any) -> Any:
    """Lists become tuples, so that a frozen model stays frozen; an absent list (null) is an empty one."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else value


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _to_tuple(value)


def _optional_tuple(value: Any) -> Any:
    return None if value is None else _to_tuple(value)


def _integer_keys(value: Any) -> Any:
    """JSON objects have string keys: "42" means token 42."""
    if not isinstance(value, Mapping):
        return value
    return {int(k) if isinstance(k, str) and k.isascii() and k.isdigit() else k: v for k, v in value.items()}


_TokenId = Annotated[int, Field(ge=0)]
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]
_Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS, allow_inf_nan=False)]


class SamplingParams(StrictModel):
    """Sampling parameters of one request; construction raises `RequestError(param=...)`.

    The token at a position is the argmax of processed logits / temperature + noise, where the noise is a
    function of (seed, choice, position, token id) alone; at temperature 0 it is the argmax of the processed
    logits.
    """

    n: int = Field(
        1, ge=1, le=MAX_CHOICES, description="Choices to generate; choice i draws from H(seed, i)."
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=MAX_FACTOR,
        allow_inf_nan=False,
        description="0 (or less than 1e-5) takes the most likely token.",
    )
    top_p: float = Field(
        1.0, gt=0, le=1, allow_inf_nan=False, description="Keep the likeliest ids whose mass reaches this."
    )
    top_k: int = Field(0, ge=-1, description="Keep the k likeliest ids; 0 or -1 keeps all.")
    min_p: float = Field(
        0.0, ge=0, le=1, allow_inf_nan=False, description="Drop ids less likely than this × the likeliest."
    )
    seed: int | None = Field(
        None, ge=MIN_SEED, le=MAX_SEED, description="A 64-bit integer; absent: drawn at random and reported."
    )
    max_tokens: int | None = Field(
        16, ge=1, description="Output tokens at most; null: as many as the context holds."
    )
    min_tokens: int = Field(0, ge=0, description="Output tokens before an EOS or stop may come.")
    stop: Annotated[tuple[_Stop, ...], BeforeValidator(_one_or_many)] = Field(
        (), max_length=MAX_STOPS, description="A string or a list of strings that end the text."
    )
    stop_token_ids: Annotated[tuple[_TokenId, ...], BeforeValidator(_to_tuple)] = Field(
        (), description="Token ids that end the sequence."
    )
    ignore_eos: bool = Field(False, description="Go on after an end-of-sequence token.")
    bad_words: Annotated[tuple[_BadWord, ...], BeforeValidator(_to_tuple)] = Field(
        (),
        max_length=MAX_BAD_WORDS,
        description="Words whose token sequences may not be completed in the output.",
    )
    allowed_token_ids: Annotated[tuple[_TokenId, ...] | None, BeforeValidator(_optional_tuple)] = Field(
        None, min_length=1, description="The only ids that may be generated."
    )
    logit_bias: Annotated[dict[_TokenId, _Bias] | None, BeforeValidator(_integer_keys)] = Field(
        None, description="Added to the logits of the named ids, -100 to 100."
    )
    repetition_penalty: float = Field(
        1.0,
        ge=1 / MAX_FACTOR,
        le=MAX_FACTOR,
        allow_inf_nan=False,
        description="Divides positive logits of ids seen in prompt or output.",
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, allow_inf_nan=False, description="Subtracted from logits of ids seen in the output."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, allow_inf_nan=False, description="Subtracted for each occurrence in the output."
    )
    logprobs: int | None = Field(
        None, ge=0, description="Report the k likeliest ids beside each emitted token (0: that token alone)."
    )
    include_stop_str_in_output: bool = Field(False, description="Keep the stop string or stop token's text.")
    skip_special_tokens: bool = Field(True, description="Leave special tokens out of the text.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ConfigError as error:
            raise RequestError(str(error), param=_field_of(error.key)) from None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens = {self.min_tokens} must be at most max_tokens = {self.max_tokens}",
                param="min_tokens",
            )
        if self.n > 1 and self.greedy:
            warnings.warn(
                f"n = {self.n} at temperature 0 gives the same text {self.n} times: raise the temperature",
                stacklevel=2,
            )
        return self

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without noise."""
        return self.temperature < GREEDY_BELOW

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated like a new one."""
        return type(self)(**{**self.model_dump(), **changes})

    def check_vocab(self, vocab_size: int) -> None:
        """Raise `RequestError` if a token id is not below `vocab_size` (ids that the tokenizer knows)."""
        self._check_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        self._check_ids("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        self._check_ids("logit_bias", self.logit_bias or (), vocab_size)
        if self.logprobs is not None and self.logprobs > vocab_size:
            raise RequestError(
                f"logprobs = {self.logprobs} must be at most the vocabulary, {vocab_size}", param="logprobs"
            )

    def _check_ids(self, param: str, ids: Iterable[int], vocab_size: int) -> None:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"{param} names token id {token}: ids of this model are 0 to {vocab_size - 1}",
                    param=param,
                )

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any] | None, **overrides: Any) -> Self:
        """Defaults out of a model's generation_config.json, with `overrides` on top.

        `do_sample: false` means temperature 0. Where `do_sample` is absent, a file that names a temperature,
        top_p or top_k is taken to mean sampling, and any other (an empty one too) greedy, as transformers
        does. Raises `ModelError` for a bad value in the file and `RequestError` for a bad override.
        """
        given = {k: v for k, v in (config or {}).items() if v is not None}
        names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
                 "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}  # fmt: skip
        values = {ours: given[theirs] for theirs, ours in names.items() if theirs in given}
        if not given.get("do_sample", bool(values.keys() & {"temperature", "top_p", "top_k"})):
            values = {k: v for k, v in values.items() if k in ("repetition_penalty", "max_tokens")}
            values["temperature"] = 0.0
        try:
            defaults = cls(**values)
        except RequestError as error:
            raise ModelError(f"generation_config.json: {error}") from None
        return defaults.replace(**overrides) if overrides else defaults


def _field_of(key: str | None) -> str | None:
    """Name of the field in a dotted location such as `stop.0`."""
    return key.split(".")[0] if key else None

"""Settings of `paceline train data`: which prompts, how the target answers them, which answers are kept."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from paceline.config.model import Dtype, Quantization, QuantizedWeights
from paceline.config.sampling import GREEDY_BELOW, MAX_FACTOR, MAX_SEED
from paceline.train.settings.base import Section
from paceline.train.settings.optim import Fraction, PositiveFloat, PositiveInt

Text = Annotated[str, Field(min_length=1)]


class AnswerSettings(Section):
    """The section ``sampling``: how the target answers."""

    temperatures: Annotated[tuple[Annotated[float, Field(ge=0, le=MAX_FACTOR)], ...], Field(min_length=1)] = (
        0.0,
    )
    """Every prompt is answered at each of these."""
    n: PositiveInt = 1
    """Answers to a prompt at each temperature above 0 (at 0 there is one)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Only the likeliest ids whose mass reaches this."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Only the k likeliest ids; 0 keeps all."""
    min_p: Fraction = 0.0
    """Only ids at least this × as likely as the likeliest."""
    max_tokens: PositiveInt = 1024
    """Tokens of an answer at most, its end included."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Each answer draws its noise from this and its own name, whichever others are written beside it."""

    @model_validator(mode="after")
    def _sensible(self) -> AnswerSettings:
        if len(set(self.temperatures)) != len(self.temperatures):
            raise ValueError("temperatures: each once; for more answers at one, raise n")
        if self.n > 1 and max(self.temperatures) < GREEDY_BELOW:
            warnings.warn(f"n = {self.n} has no effect at temperature 0", stacklevel=2)
        return self


class GeneratorSettings(Section):
    """The section ``engine``: how the engine that answers is set up; the keys are `paceline serve`'s."""

    dtype: Dtype = "auto"
    """Arithmetic of the weights; auto: as stored in the checkpoint."""
    quantization: Quantization = "auto"
    """How the checkpoint is quantised; auto: as it says itself."""
    quantized_weights: QuantizedWeights = "dequantized"
    """What 4-bit weights become at load."""
    max_num_seqs: PositiveInt = 64
    """Answers that are written at once; a GPU has room for hundreds (take a power of two)."""
    max_num_batched_tokens: PositiveInt = 4096
    """Rows of one step, prompts and answers together."""
    max_model_len: PositiveInt | None = None
    """Prompt and answer together; absent: what the longest answer to a 4096-token prompt takes, and no more
    than the model has."""
    num_blocks: PositiveInt | None = None
    """KV blocks of 64 tokens; absent: enough for all answers at full length, as far as memory goes."""
    deterministic: bool | None = None
    """On: a stopped run that goes on gives the very answers it would have given (absent: on a CPU)."""
    speculative_config: dict[str, Any] | None = None
    """A proposer, which changes the pace and not the text."""


class RolloutSettings(Section):
    """The section ``rollout``: answers by rollouts instead of the engine, see `train.data.rollout`."""

    slots: PositiveInt = 1024
    """Answers that are written at once, in one CUDA graph."""
    seconds: PositiveFloat | None = None
    """No answer is begun after this, and what is unfinished then is dropped."""


class FilterSettings(Section):
    """The section ``filters``: which answers are not kept."""

    cut: Literal["drop", "keep"] = "drop"
    """Answers that were cut off at max_tokens."""
    max_repeated: Fraction | None = 0.15
    """Largest share of an answer's tokens that may stand inside a 12-gram that comes twice; null: any."""
    min_tokens: PositiveInt = 2
    """Tokens of an answer at least, its end included."""


class DataSettings(Section):
    """A configuration of `paceline train data`."""

    model: Text
    """The target that answers: a local folder, a hub id, or `demo`."""
    prompts: Annotated[tuple[Text, ...], Field(min_length=1)]
    """JSON-lines files, or folders of them (`*.jsonl`); a line has `prompt` or `messages`, and may have
    `tools`, `category` and `id`."""
    out: Text
    """The folder that gets the shards."""
    thinking: Literal["on", "off", "both", "asked"] = "off"
    """What the chat template's `enable_thinking` says; both: every prompt is answered either way; asked: as
    its line's `thinking` says (absent: off). Train in the mode that is served."""
    chat: bool | None = None
    """Whether prompts go through the chat template; absent: where the model has one."""
    held_out: tuple[Text, ...] = ()
    """Files or folders of prompts that must not be answered, because something is measured on them."""
    held_out_overlap: Annotated[float, Field(gt=0, le=1)] = 0.5
    """A prompt is refused as too near when so large a share of the 13-grams of the shorter of the two stands
    in both."""
    held_out_action: Literal["drop", "error"] = "drop"
    """Whether held-out prompts are left out, or are a fault that stops the command before it begins."""
    limit: PositiveInt | None = None
    """Only the first prompts that are left after duplicates and held-out ones."""
    sampling: AnswerSettings = AnswerSettings()
    """How the target answers."""
    engine: GeneratorSettings = GeneratorSettings()
    """The engine that runs it."""
    rollout: RolloutSettings | None = None
    """Many short answers of a small model at several times the engine's pace, on a GPU: no scheduler, no
    paged cache. Order and, above temperature 0, texts then differ from run to run."""
    filters: FilterSettings = FilterSettings()
    """Which answers are kept."""
    rows_per_shard: PositiveInt = 4096
    """Samples of a file of the folder."""
    report_every: PositiveFloat = 10.0
    """Seconds between two lines of progress."""

    @field_validator("thinking", mode="before")
    @classmethod
    def _yaml_reads_on_as_true(cls, value: Any) -> Any:
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    @field_validator("prompts", "held_out", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _rollouts_sample_plainly(self) -> DataSettings:
        cut = [n for n in ("top_p", "top_k") if n in self.sampling.model_fields_set]
        if self.rollout is not None and cut:
            raise ValueError(f"sampling.{cut[0]}: rollouts take temperature and min_p; remove one of the two")
        if self.rollout is not None and self.engine.speculative_config is not None:
            raise ValueError("engine.speculative_config: rollouts do not draft; remove one of the two")
        return self

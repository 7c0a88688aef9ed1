"""Settings of `paceline train target`: the model's shape, texts and dialogues, how it learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline.train.settings.base import Section
from paceline.train.settings.optim import Fraction, NonNegative, OptimSettings, PositiveFloat, PositiveInt

Text = Annotated[str, Field(min_length=1)]


class ModelShape(Section):
    """The section ``model``; keys are those of a qwen3_5 config.json."""

    hidden_size: PositiveInt = 512
    intermediate_size: PositiveInt = 1536
    num_hidden_layers: PositiveInt = 12
    full_attention_interval: PositiveInt = 4
    """Every so many layers one has full attention, the others a gated delta rule."""
    num_attention_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt = 2
    head_dim: PositiveInt = 128
    partial_rotary_factor: Fraction = 0.25
    rope_theta: PositiveFloat = 10000.0
    linear_num_key_heads: PositiveInt = 2
    linear_num_value_heads: PositiveInt = 4
    linear_key_head_dim: PositiveInt = 128
    linear_value_head_dim: PositiveInt = 128
    linear_conv_kernel_dim: Annotated[int, Field(ge=2)] = 4
    vocab_size: PositiveInt | None = None
    """Rows of the embedding table; absent: the tokenizer's, rounded up to a multiple of 64."""
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = True

    @model_validator(mode="after")
    def _fits(self) -> ModelShape:
        for many, few in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            if getattr(self, many) % getattr(self, few):
                raise ValueError(f"{many} must be a multiple of {few}")
        if self.rotary_dim == 0 or self.rotary_dim % 2:
            raise ValueError("head_dim × partial_rotary_factor must be even and positive")
        return self

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotate."""
        return int(self.head_dim * self.partial_rotary_factor)


class NewTokenizer(Section):
    """A byte-level BPE, learnt from the texts, with the marks of Qwen's chat format."""

    vocab_size: Annotated[int, Field(ge=320)]
    """Ids in all, the 256 bytes and the special tokens among them."""
    min_frequency: PositiveInt = 2


class TextSource(Section):
    """Documents to be continued: every token of them is learnt."""

    path: Text
    """A text file, perhaps .xz, or a folder of them. Lines that hold the end-of-text mark alone separate the
    documents of a file."""
    kind: Text
    """The name under which its held-out loss is told."""
    repeat: PositiveInt = 1
    """How often an epoch reads it."""


class DialogueSource(Section):
    """Conversations whose last answer is learnt."""

    path: Text
    """JSON lines with ``messages``, perhaps ``tools`` and ``thinking`` (whether that answer reasons)."""
    kind: Text
    repeat: PositiveInt = 1


class AnswerSource(Section):
    """What `train.synth.dialogues` has written: questions and answers of a small model."""

    folder: Text
    part: Text = "brief"
    tokenizer: Text
    """The folder of that small model, whose ids the answers are."""
    kind: Text
    repeat: PositiveInt = 1


class SynthSource(Section):
    """Dialogues made by rule, see `train.synth`."""

    count: PositiveInt
    seed: int = 0
    weights: dict[str, NonNegative] | None = None
    """Generator to share; absent: the standard mix."""
    novels: tuple[Text, ...] = ()
    """Texts of which the generator ``prose`` takes passages."""
    kind: Text = "synth"
    held_out: PositiveInt = 256
    """Dialogues of the held-out split that are measured."""

    @model_validator(mode="after")
    def _has_effect(self) -> SynthSource:
        if bool(self.novels) != ("prose" in (self.weights or {})):
            raise ValueError("novels and a weight for prose need each other")
        return self


class LoopSource(Section):
    """The section ``loops``: own answers that repeat themselves, whose repetitions are unlearnt."""

    folder: Text
    """What `paceline train data` has written with this model and ``filters.max_repeated: null``."""
    gram: Annotated[int, Field(ge=2)] = 8
    """A token is unlearnt that completes so many in a row that stand in the answer already."""
    kind: Text = "loops"
    repeat: PositiveInt = 1
    """How often an epoch has them; a tenth to a fifth of all tokens was enough."""


class HeldOut(Section):
    """The section ``held_out``: what is never trained on."""

    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """Of each source's documents and dialogues, chosen by a hash of their text."""
    rows: PositiveInt = 32
    """Packed rows of each kind that are measured."""


class Distillation(Section):
    """The section ``distill``: a teacher whose next-token distribution is learnt beside the text."""

    teacher: Text
    """A model whose table begins with the student's vocabulary."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the teacher in the loss."""


class TargetSettings(Section):
    """A configuration of `paceline train target`."""

    out: Text
    """The folder of the run; last/ and best/ in it are servable."""
    tokenizer: Text | NewTokenizer | None = None
    """A folder with tokenizer.json and tokenizer_config.json, or how to make one; absent: init_from's."""
    model: ModelShape = ModelShape()
    init_from: Text | None = None
    """A hybrid to continue, such as a converted dense model; its shape is kept."""
    text: tuple[TextSource, ...] = ()
    dialogues: tuple[DialogueSource, ...] = ()
    answers: tuple[AnswerSource, ...] = ()
    synth: tuple[SynthSource, ...] = ()
    loops: LoopSource | None = None
    held_out: HeldOut = HeldOut()
    cache: Text | None = None
    """A file that keeps the encoded sources for the next start; made if it is not there."""
    rows: PositiveInt = 8
    """Packed rows of a batch, in each process."""
    length: Annotated[int, Field(ge=2)] = 1024
    """Tokens of a row."""
    prompt_weight: Fraction = 0.0
    """What a token of a dialogue counts that is not of the answer, against 1 for the answer's."""
    head_rows: PositiveInt = 8192
    """Tokens whose logits exist at once; memory goes with it times the vocabulary."""
    distill: Distillation | None = None
    four_bits: Literal["regular", "xs"] | None = None
    """Train under the rounding of this recipe of `paceline quantize`; best for a last stage, from
    `init_from`, at a lower learning rate."""
    optim: OptimSettings

    def _sources(self) -> tuple[TextSource | DialogueSource | AnswerSource | SynthSource, ...]:
        return (*self.text, *self.dialogues, *self.answers, *self.synth)

    @model_validator(mode="after")
    def _together(self) -> TargetSettings:
        if not self._sources():
            raise ValueError("nothing to learn from: give text, dialogues, answers or synth")
        if self.init_from is not None and self.model.model_fields_set:
            named = ", ".join(sorted(self.model.model_fields_set))
            raise ValueError(f"model: {named}: init_from brings the shape along; remove one of the two")
        if self.init_from is None and self.tokenizer is None:
            raise ValueError("tokenizer: give a folder, or {vocab_size: ...} for a new one")
        if self.cache is not None and isinstance(self.tokenizer, NewTokenizer):
            raise ValueError("cache: a new tokenizer is learnt from the sources each time; give a folder")
        if self.init_from is not None and isinstance(self.tokenizer, NewTokenizer):
            raise ValueError("tokenizer: a new one does not fit the table of init_from")
        if self.loops is not None and self.init_from is None:
            raise ValueError("loops: the answers are of a model that is continued: give init_from")
        if self.loops is not None and self.loops.kind in {s.kind for s in self._sources()}:
            raise ValueError(f"loops.kind: {self.loops.kind!r} is the kind of another source: give another")
        if self.init_from is None and self.length > self.model.max_position_embeddings:
            raise ValueError("length exceeds model.max_position_embeddings")
        return self

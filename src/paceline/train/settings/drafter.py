"""Settings of `paceline train drafter`: the drafter's shape, blocks and loss, data, evaluation, export."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline.train.settings.base import Section
from paceline.train.settings.optim import Fraction, OptimSettings, PositiveFloat, PositiveInt

Text = Annotated[str, Field(min_length=1)]
LayerKind = Literal["full_attention", "sliding_attention"]
Format = Literal["zlab", "speculators"]


class DrafterShape(Section):
    """The shape, by the keys of a published drafter's config.json.

    What is absent follows the target.
    """

    num_hidden_layers: PositiveInt = 5
    """Layers of the drafter."""
    intermediate_size: PositiveInt | None = None
    """Width of its feed-forward; absent: the target's, as in the next three."""
    num_attention_heads: PositiveInt | None = None
    """Query heads."""
    num_key_value_heads: PositiveInt | None = None
    """Key and value heads."""
    head_dim: PositiveInt | None = None
    """Width of a head."""
    block_size: Annotated[int, Field(ge=2)] = 16
    """The anchor and the guesses after it."""
    mask_token_id: Annotated[int, Field(ge=0)] | None = None
    """Absent: the first row of the target's embedding table that its tokenizer does not name, else the row of
    its mask token (`<|mask|>`, `<|MASK|>`, `<mask>`, `[MASK]`, `|<MASK>|`)."""
    target_layer_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Zero-based target layers whose output is tapped; absent: evenly from layer 1 to the last but two."""
    layer_types: tuple[LayerKind, ...] | None = None
    """Absent: full attention everywhere."""
    sliding_window: PositiveInt | None = None
    """Positions that a sliding layer sees, the query's own included."""
    is_causal: bool | None = None
    """Whether a block row sees only earlier rows of its block, in every layer; absent: in sliding layers."""
    rope_theta: PositiveFloat | None = None
    """Base of the rotary positions; absent: the target's."""
    max_position_embeddings: PositiveInt | None = None
    """Longest context it drafts for; absent: the target's."""

    @model_validator(mode="after")
    def _fits(self) -> DrafterShape:
        kinds = self.layer_types or ()
        if kinds and len(kinds) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types has {len(kinds)} entries for num_hidden_layers = {self.num_hidden_layers}"
            )
        if ("sliding_attention" in kinds) != (self.sliding_window is not None):
            raise ValueError("sliding_window and sliding_attention layers need each other")
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads and kv_heads and heads % kv_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim and self.head_dim % 2:
            raise ValueError("head_dim must be even: it is rotated in pairs")
        return self


class LossSettings(Section):
    """The loss; formulas in the guide and in `train.draft.losses`."""

    kind: Literal["decay", "kl", "dpace"] = "dpace"
    """decay: cross-entropy that counts less the later the guess; kl: the target's own distribution instead
    of its token, same weights; dpace: cross-entropy weighted by what hangs on each guess."""
    decay_gamma: PositiveFloat | None = None
    """Of decay and kl; absent: the paper's 7, 5 and 4 for blocks of 16, 10 and 8, linear between; a head's
    guesses then all weigh the same."""
    dpace_alpha: Fraction = 0.5
    """Smoothing of dpace's probabilities."""
    head_rows: PositiveInt = 2048
    """Guesses whose logits exist at once; memory goes with it times the vocabulary."""

    @model_validator(mode="after")
    def _has_effect(self) -> LossSettings:
        if self.kind == "dpace" and self.decay_gamma is not None:
            raise ValueError("decay_gamma has no effect on dpace: remove it, or set kind: decay")
        if self.kind != "dpace" and "dpace_alpha" in self.model_fields_set:
            raise ValueError(f"dpace_alpha has no effect on {self.kind}: remove it, or set kind: dpace")
        return self


class SampleSettings(Section):
    """The target's own answers and how rows are packed of them."""

    path: Text
    """A folder that `paceline train data` has written."""
    rows: PositiveInt = 4
    """Packed rows of a batch, in each process."""
    length: Annotated[int, Field(ge=2)] = 3072
    """Tokens of a row; longer samples are cut off."""
    limit: PositiveInt | None = None
    """Only the first samples."""


class FeatureSettings(Section):
    """Where the target's tapped layers come from."""

    mode: Literal["online", "cached"] = "online"
    """online: the target runs over each batch. cached: it runs over the data once, and what it said is read
    from disk; the size is shown first."""
    folder: Text | None = None
    """The cache; refused where it was made of other weights, taps or samples."""
    max_gib: PositiveFloat = 100.0
    """Largest cache that is written."""

    @model_validator(mode="after")
    def _needs_a_folder(self) -> FeatureSettings:
        if (self.mode == "cached") != (self.folder is not None):
            raise ValueError("folder and mode: cached need each other")
        return self


class AcceptanceSettings(Section):
    """Serving acceptance on prompts that are not trained on."""

    prompts: Text
    """JSON lines with `prompt` or `messages`, and perhaps `category`."""
    limit: PositiveInt = 24
    """Prompts, taken evenly over the file."""
    max_tokens: PositiveInt = 192
    """Longest answer."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Of the answers; 0: the most likely token."""
    thinking: bool = False
    """What the chat template's `enable_thinking` will say at serving."""
    max_num_seqs: PositiveInt = 8
    """Answers that are written at once."""


class ExportSettings(Section):
    """How a drafter is written."""

    formats: Annotated[tuple[Format, ...], Field(min_length=1)] = ("zlab",)
    """The first is written into the folder itself, a second one into a sub-folder of its name."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the stored weights."""

    @model_validator(mode="after")
    def _each_once(self) -> ExportSettings:
        if len(set(self.formats)) != len(self.formats):
            raise ValueError("formats: each once")
        return self


class LongContextSettings(Section):
    """A second stage on longer rows, from the first one's weights.

    It runs the target over each batch, whatever ``features`` says, and writes ``out/long_context``.
    """

    data: SampleSettings
    """Its samples and rows."""
    num_anchors: PositiveInt = 512
    """Blocks of a row."""
    optim: OptimSettings
    """Its steps and learning rate."""


class DrafterSettings(Section):
    """A configuration of `paceline train drafter`."""

    target: Text
    """The model to be served: a local folder, a hub id, or `demo`."""
    out: Text
    """The folder of the run: last/ and best/ are published drafters."""
    data: SampleSettings
    """What is learnt from."""
    drafter: DrafterShape = DrafterShape()
    """Its shape."""
    init_from: Text | None = None
    """A published drafter to continue, in any layout that the engine loads; its shape is kept."""
    num_anchors: PositiveInt = 512
    """Blocks of a row, drawn anew at every step."""
    loss: LossSettings = LossSettings()
    """What guesses are compared with, and how much each counts."""
    features: FeatureSettings = FeatureSettings()
    """Where the target's layers come from."""
    optim: OptimSettings
    """How it is trained, and for how long."""
    evaluate: AcceptanceSettings | None = None
    """Held-out prompts; absent: nothing is measured, and there is no best/."""
    export: ExportSettings = ExportSettings()
    """Layouts."""
    long_context: LongContextSettings | None = None
    """A second stage."""

    @model_validator(mode="after")
    def _together(self) -> DrafterSettings:
        if self.init_from is not None and self.drafter.model_fields_set:
            named = ", ".join(sorted(self.drafter.model_fields_set))
            raise ValueError(f"drafter: {named}: init_from brings the shape along; remove one of the two")
        return self

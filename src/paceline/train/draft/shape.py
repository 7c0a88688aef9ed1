"""From settings to a drafter's numbers, fitted to its target."""

from __future__ import annotations

import warnings
from pathlib import Path

from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import ConfigError
from paceline.layers.rotary import RopeSpec
from paceline.models.dflash_config import default_taps
from paceline.models.spec import SLIDING_ATTENTION, DrafterSpec, TargetSpec
from paceline.train.data.batches import SampleBatches
from paceline.train.draft.losses import LossShape
from paceline.train.modules.vocabulary import MASK
from paceline.train.settings.drafter import DrafterSettings, DrafterShape, LossSettings

_PAPER_GAMMAS = ((8, 4.0), (10, 5.0), (16, 7.0))
"""Block size and gamma of the published recipe."""
_MASKS = (MASK, "<|MASK|>", "<mask>", "[MASK]", "|<MASK>|")
"""Tokens that are there to stand for no text, the first that a tokenizer has."""
_SUGGESTED = 4
"""Special tokens that an error names."""


def fit_spec(shape: DrafterShape, target: TargetSpec, folder: Path) -> DrafterSpec:
    """The drafter that `shape` asks for, over the target in `folder`.

    Raises: ConfigError for taps beyond the target, a mask row outside its table, heads that do not divide,
    and where no row of the table is free for the mask and none is named.
    """
    layers, size = shape.num_hidden_layers, shape.block_size
    heads = shape.num_attention_heads or target.num_heads
    kv_heads = shape.num_key_value_heads or min(target.kv_heads, heads)
    if heads % kv_heads:
        raise ConfigError(
            f"drafter: num_attention_heads = {heads} is no multiple of num_key_value_heads = {kv_heads}",
            key="drafter",
        )
    head_dim = shape.head_dim or target.head_dim
    kinds = shape.layer_types or ("full_attention",) * layers
    sliding = [kind == SLIDING_ATTENTION for kind in kinds]
    return DrafterSpec(
        hidden_size=target.hidden_size,
        intermediate_size=shape.intermediate_size or target.intermediate_size,
        vocab_size=target.vocab_size,
        num_layers=layers,
        num_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=RopeSpec(shape.rope_theta or target.rope.theta, head_dim),
        max_position=shape.max_position_embeddings or target.max_position,
        rms_eps=target.rms_eps,
        block_size=size,
        mask_token_id=_mask_row(shape.mask_token_id, target, folder),
        target_layer_ids=_taps(shape, target),
        windows=tuple(shape.sliding_window if s else None for s in sliding),
        causal=tuple(s if shape.is_causal is None else shape.is_causal for s in sliding),
        dtype=target.dtype,
    )


def check_positions(settings: DrafterSettings, spec: DrafterSpec, length: int, key: str) -> None:
    """Whether the drafter has positions for rows of `length` tokens; `key` is where that stands.

    Raises: ConfigError where the settings say how many it has. A drafter that is continued brings its number
    along, and rows may hold several short samples: that warns.
    """
    if length <= spec.max_position:
        return
    if settings.init_from is None:
        raise ConfigError(
            f"drafter: max_position_embeddings = {spec.max_position} is less than {key} = {length}: "
            f"raise it, or lower {key}",
            key="drafter.max_position_embeddings",
        )
    warnings.warn(
        f"{settings.init_from} drafts up to position {spec.max_position}, {key} is {length}: what longer "
        f"samples teach beyond that is never served; lower {key} unless all samples are shorter",
        stacklevel=2,
    )


def warn_of_written_mask(batches: SampleBatches, mask: int, folder: Path) -> None:
    """A block tells guesses from tokens by the mask's row alone, so no text should hold it."""
    count = batches.answers_with(mask)
    if count:
        warnings.warn(
            f"{folder}: answers hold the mask's token {mask} {count:,} times: name one that never occurs as "
            "drafter.mask_token_id",
            stacklevel=2,
        )


def mask_text(mask: int, folder: Path) -> str:
    """What the tokenizer of the target in `folder` calls the mask's row, for a plan."""
    tokenizer = load_tokenizer(folder)
    token = None if tokenizer is None else tokenizer.backend.id_to_token(mask)
    return str(token or "none: a row that the tokenizer does not name")


def loss_shape(settings: LossSettings, block_size: int) -> LossShape:
    """The loss, with the paper's gamma for this block size where none is given."""
    return LossShape(settings.kind, settings.decay_gamma or paper_gamma(block_size), settings.dpace_alpha)


def paper_gamma(block_size: int) -> float:
    """7, 5 and 4 for blocks of 16, 10 and 8 (arXiv 2602.06036, A.1), linear between and beyond them."""
    (x0, y0), (x1, y1), (x2, y2) = _PAPER_GAMMAS
    if block_size <= x1:
        return max(1.0, y0 + (block_size - x0) * (y1 - y0) / (x1 - x0))
    return y1 + (block_size - x1) * (y2 - y1) / (x2 - x1)


def _taps(shape: DrafterShape, target: TargetSpec) -> tuple[int, ...]:
    taps = shape.target_layer_ids or default_taps(target.num_layers, shape.num_hidden_layers)
    taps = (
        taps
        if shape.target_layer_ids
        else tuple(sorted({min(max(tap, 0), target.num_layers - 1) for tap in taps}))
    )
    beyond = [tap for tap in taps if tap >= target.num_layers]
    if beyond:
        raise ConfigError(
            f"drafter: target_layer_ids names layer {beyond[0]}, the target's last is "
            f"{target.num_layers - 1}",
            key="drafter.target_layer_ids",
        )
    if len(set(taps)) != len(taps):
        raise ConfigError("drafter: target_layer_ids: each layer once", key="drafter.target_layer_ids")
    return taps


def _mask_row(named: int | None, target: TargetSpec, folder: Path) -> int:
    """The embedding row of the mask: it must exist in the target's table, and should stand for no text."""
    if named is None:
        return _free_row(target, folder)
    if named >= target.vocab_size:
        raise ConfigError(
            f"drafter: mask_token_id = {named} is beyond the target's embedding table of {target.vocab_size} "
            f"rows; take one below it",
            key="drafter.mask_token_id",
        )
    return named


def _free_row(target: TargetSpec, folder: Path) -> int:
    """A row that stands for no text: the first without a token, else that of a token that is a mask.

    Raises: ConfigError where there is neither, with special tokens that may do: neither ends of an answer nor
    in the chat format.
    """
    tokenizer = load_tokenizer(folder)
    if tokenizer is not None and tokenizer.size < target.vocab_size:
        return tokenizer.size
    added = {} if tokenizer is None else tokenizer.backend.get_added_tokens_decoder()
    named = {token.content: i for i, token in sorted(added.items()) if i < target.vocab_size}
    for mask in _MASKS:
        if mask in named:
            return int(named[mask])
    template = (tokenizer.chat_template if tokenizer else None) or ""
    used = {i for t, i in named.items() if i in target.eos_ids or t in template or not added[i].special}
    spare = [f"{token} ({i})" for token, i in named.items() if i not in used]
    perhaps = f", perhaps the special token {' or '.join(spare[:_SUGGESTED])}" if spare else ""
    raise ConfigError(
        f"drafter: every row of the table of {target.vocab_size} may stand for text: set mask_token_id to an "
        f"id that no answer holds{perhaps}; --plan warns of one that answers hold",
        key="drafter.mask_token_id",
    )

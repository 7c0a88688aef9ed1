"""Reading a DFlash drafter's config and checking that it fits its target, before any weight is read.

Format: z-lab's published drafters (3 + 11 * layers tensors), or vLLM's speculators, which is translated first
(`dflash_layouts`). A field may stand in `dflash_config` or at the top level; the nested one wins.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from paceline.errors import PairingError, UnsupportedModelError
from paceline.layers.attention import HeadShape
from paceline.models.checkpoint import Checkpoint, Shape, check_tensors
from paceline.models.dflash_layouts import ARCHITECTURE, is_speculators, zlab_config
from paceline.models.fields import MAX_LAYERS, Fields, layer_types, rope_spec
from paceline.models.parts import attention_tensors, mlp_tensors, norm_tensors
from paceline.models.spec import FULL_ATTENTION, SLIDING_ATTENTION, DrafterSpec, TargetSpec

# Tables that some exports carry along; the target's own are used, as the drafter was trained with them.
_SHARED = ("embed_tokens.weight", "lm_head.weight", "model.embed_tokens.weight")
# Fields of later drafter families and of other targets, with the value that means "not used".
_UNUSED: dict[str, tuple[Any, ...]] = {
    "sample_from_anchor": (False,),
    "input_embedding_scale": (1, 1.0),
    "output_multiplier": (1, 1.0),
    "final_logit_softcapping": (0, 0.0),
    "attention_bias": (False,),
}
_DFLASH2_FIELDS = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")


def read_spec(
    checkpoint: Checkpoint, target: TargetSpec, num_speculative_tokens: int | None = None
) -> DrafterSpec:
    """The drafter's numbers, after every check that needs no weight.

    Raises: UnsupportedModelError for another kind of drafter, PairingError where this one does not fit
    `target` (hidden size, vocabulary, taps, mask id, window, missing tensor) or cannot draft
    `num_speculative_tokens`, CheckpointError for a wrong field or a surplus or mis-shaped tensor.
    """
    config = zlab_config(checkpoint.config_file, checkpoint.config)
    top = Fields(checkpoint.config_file, config)
    fields = Fields(checkpoint.config_file, top.mapping("dflash_config"), config)
    _require_dflash(fields, checkpoint)
    spec = _spec(fields, target)
    _check_pairing(spec, fields, target)
    if num_speculative_tokens is not None and num_speculative_tokens > spec.max_speculative_tokens:
        raise PairingError(
            f"{checkpoint.path}: num_speculative_tokens is {num_speculative_tokens}, but a block of "
            f"block_size {spec.block_size} drafts at most {spec.max_speculative_tokens}"
        )
    copies = _shared_copies(checkpoint, target)
    own = {name: info for name, info in checkpoint.tensors.items() if name not in copies}
    check_tensors(own, _tensor_shapes(spec), str(checkpoint.path), missing_error=PairingError)
    return spec


def warn_of_oddities(checkpoint: Checkpoint, target: TargetSpec) -> None:
    """Say what is unusual about an accepted drafter: once a load, not at every look at its numbers."""
    copies = _shared_copies(checkpoint, target)
    if copies and not is_speculators(checkpoint.config):  # whose layout has them always, frozen
        warnings.warn(
            f"{checkpoint.path}: {', '.join(copies)} ignored; the target's tables are used", stacklevel=2
        )
    made_for = checkpoint.config.get("num_target_layers")
    if made_for not in (None, target.num_layers):
        warnings.warn(
            f"{checkpoint.path}: the drafter was made for {made_for} target layers, this target has "
            f"{target.num_layers} layers; expect few accepted drafts",
            stacklevel=2,
        )


def attention_shape(spec: DrafterSpec) -> HeadShape:
    """Heads of the drafter's layers; its norms are plain, unlike the target's."""
    return HeadShape(spec.num_heads, spec.kv_heads, spec.head_dim, spec.rms_eps, zero_centred=False)


def default_taps(target_layers: int, drafter_layers: int) -> tuple[int, ...]:
    """The taps of a drafter that names none: evenly from layer 1 to the target's last but two."""
    if drafter_layers == 1:
        return (target_layers // 2,)
    step = (target_layers - 4) / (drafter_layers - 1)
    return tuple(round(1 + i * step) for i in range(drafter_layers))


def _require_dflash(fields: Fields, checkpoint: Checkpoint) -> None:
    """Refuse other kinds of drafter by name; run wrongly they would load and draft badly."""
    named = fields.names("architectures")
    second = [name for name in _DFLASH2_FIELDS if fields.get(name) is not None]
    if second or any("dflash2" in name.lower() for name in named):
        raise UnsupportedModelError(
            f"{checkpoint.path}: DFlash2 drafters ({', '.join(named + second)}) are not supported; "
            f"use a DFlash drafter ({ARCHITECTURE})"
        )
    if named and ARCHITECTURE not in named:
        raise UnsupportedModelError(
            f"{checkpoint.path}: {', '.join(named)} is no DFlash drafter; paceline runs {ARCHITECTURE}"
        )
    if not named and fields.get("mask_token_id") is None:
        raise UnsupportedModelError(
            f"{checkpoint.path}: neither architectures nor mask_token_id says that this is a DFlash drafter"
        )
    fields.require("hidden_act", ["silu"], "silu")
    for name, allowed in _UNUSED.items():
        fields.require(name, allowed, allowed[0])
    if fields.get("draft_vocab_size") is not None:
        raise UnsupportedModelError(
            f"{fields.origin}: draft_vocab_size is set; paceline runs plain DFlash drafters"
        )
    if (Path(checkpoint.path) / "mask_embedding.pt").exists():
        raise UnsupportedModelError(
            f"{checkpoint.path}: mask_embedding.pt replaces the mask's row; paceline uses the target's table"
        )


def _spec(fields: Fields, target: TargetSpec) -> DrafterSpec:
    layers, heads = fields.size("num_hidden_layers", most=MAX_LAYERS), fields.size("num_attention_heads")
    hidden, max_position = fields.size("hidden_size"), fields.size("max_position_embeddings")
    head_dim = fields.size("head_dim", max(hidden // heads, 1))
    windows, causal = _layer_attention(fields, layers)
    return DrafterSpec(
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size", target.vocab_size),
        num_layers=layers,
        num_heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=rope_spec(fields, head_dim, max_position, default_partial=1.0),
        max_position=max_position,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        block_size=fields.size("block_size", least=2),
        mask_token_id=fields.index("mask_token_id"),
        target_layer_ids=fields.indices("target_layer_ids") or default_taps(target.num_layers, layers),
        windows=windows,
        causal=causal,
        dtype=target.dtype,
    )


def _layer_attention(fields: Fields, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and block causality of each layer.

    Causality: `is_causal` for all layers, else `causal`, else causal exactly for `sliding_attention` layers.
    `use_swa` is another published style: one window for every layer, not causal unless the config says so.
    """
    stated = fields.optional_flag("is_causal")
    if stated is None:
        stated = fields.optional_flag("causal")
    if fields.flag("use_swa"):
        return (_window(fields, "swa_window_size", 0),) * layers, (bool(stated),) * layers
    full = (FULL_ATTENTION,) * layers
    kinds = layer_types(fields, layers, (FULL_ATTENTION, SLIDING_ATTENTION), full)
    sliding = [kind == SLIDING_ATTENTION for kind in kinds]
    windows = tuple(_window(fields, "sliding_window", i) if s else None for i, s in enumerate(sliding))
    return windows, tuple(s if stated is None else stated for s in sliding)


def _window(fields: Fields, name: str, layer: int) -> int:
    if fields.get(name) is None:
        raise PairingError(f"{fields.origin}: layer {layer} is a sliding layer without a window (no {name})")
    return fields.size(name)


def _check_pairing(spec: DrafterSpec, fields: Fields, target: TargetSpec) -> None:
    """Each way in which a drafter can belong to another target, with its own message."""
    origin = fields.origin
    feature_size = fields.size("target_hidden_size", spec.hidden_size)
    for name, size in (("hidden_size", spec.hidden_size), ("target_hidden_size", feature_size)):
        if size != target.hidden_size:
            raise PairingError(
                f"{origin}: {name} is {size}, the target's hidden size is {target.hidden_size}"
            )
    if spec.vocab_size != target.vocab_size:
        raise PairingError(
            f"{origin}: vocab_size is {spec.vocab_size}, the target's vocabulary is {target.vocab_size}"
        )
    beyond = [tap for tap in spec.target_layer_ids if tap >= target.num_layers]
    if beyond:
        raise PairingError(
            f"{origin}: target_layer_ids names layer {beyond[0]}, beyond the target's last layer "
            f"{target.num_layers - 1}"
        )
    if spec.mask_token_id >= target.vocab_size:
        raise PairingError(
            f"{origin}: mask_token_id {spec.mask_token_id} is beyond the target's embedding table of "
            f"{target.vocab_size} rows"
        )
    if spec.num_heads % spec.kv_heads:
        raise PairingError(f"{origin}: num_attention_heads must be a multiple of num_key_value_heads")


def _shared_copies(checkpoint: Checkpoint, target: TargetSpec) -> list[str]:
    """Embedding and output tables that were exported along with the drafter."""
    shape, stored = (target.vocab_size, target.hidden_size), checkpoint.tensors
    return [name for name in _SHARED if name in stored and stored[name].shape == shape]


def _tensor_shapes(spec: DrafterSpec) -> dict[str, Shape]:
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, len(spec.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(spec.num_layers):
        layer = f"layers.{i}."
        shapes |= norm_tensors(layer, hidden)
        shapes |= attention_tensors(f"{layer}self_attn.", hidden, attention_shape(spec), gated=False)
        shapes |= mlp_tensors(f"{layer}mlp.", hidden, spec.intermediate_size)
    return shapes

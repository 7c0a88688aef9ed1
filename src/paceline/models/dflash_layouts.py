"""The layouts of a DFlash drafter's config.json: z-lab's, which the rest of paceline reads, and that of
vLLM's speculators, which is translated into it.

The tensors have the same names in both. speculators nests the transformer's sizes in
`transformer_layer_config`, and its `aux_hidden_state_layer_ids` name the layer that a tapped state ENTERS:
z-lab's layer id + 1. Its files carry copies of the target's tables, which it keeps frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import CheckpointError, PairingError, UnsupportedModelError
from paceline.models.fields import Fields

ARCHITECTURE = "DFlashDraftModel"
_MARK = "speculators_model_type"
_DEFAULT_BLOCK = 8  # of speculators' config class
_KEPT = ("target_hidden_size", "sample_from_anchor", "quantization_config")
"""Fields that mean the same in both layouts."""


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is in the layout of vLLM's speculators."""
    return config.get(_MARK) is not None


def zlab_config(origin: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A drafter's config.json in z-lab's layout, whichever of the two it has.

    origin: the file's name, for messages. Raises: UnsupportedModelError for another kind of speculator, a
    vocabulary of its own or a tap before the first layer, CheckpointError for a missing or wrong field.
    """
    if not is_speculators(config):
        return config
    fields = Fields(origin, config)
    fields.require(_MARK, ["dflash"], "dflash")
    if config.get("transformer_layer_config") is None:
        raise CheckpointError(f"{origin}: field transformer_layer_config is missing (expected an object)")
    layers = fields.mapping("transformer_layer_config")
    _check_vocabulary(fields, Fields(origin, layers))
    layers = {name: value for name, value in layers.items() if name != "architectures"}
    if fields.flag("sliding_window_non_causal"):
        # Only sliding layers are causal by default, so this makes all of them look both ways.
        layers = {**layers, "is_causal": False}
    return {
        **layers,
        **{name: config[name] for name in _KEPT if name in config},
        "architectures": [ARCHITECTURE],
        "block_size": fields.size("block_size", _DEFAULT_BLOCK, least=2),
        "dflash_config": {"mask_token_id": fields.index("mask_token_id"), "target_layer_ids": _taps(fields)},
    }


def _check_vocabulary(fields: Fields, layers: Fields) -> None:
    vocab = layers.size("vocab_size")
    draft = fields.size("draft_vocab_size", vocab)
    if draft != vocab:
        raise UnsupportedModelError(
            f"{fields.origin}: draft_vocab_size is {draft} of {vocab} (a vocabulary of its own, d2t and t2d)"
            "; paceline runs drafters over the target's whole vocabulary"
        )


def _taps(fields: Fields) -> list[int]:
    entered = fields.indices("aux_hidden_state_layer_ids")
    if entered is None:
        raise PairingError(
            f"{fields.origin}: aux_hidden_state_layer_ids is missing, so nobody knows which layers it taps"
        )
    if 0 in entered:
        raise UnsupportedModelError(
            f"{fields.origin}: aux_hidden_state_layer_ids names 0, the embedding; paceline taps layers' "
            "outputs"
        )
    return [layer - 1 for layer in entered]

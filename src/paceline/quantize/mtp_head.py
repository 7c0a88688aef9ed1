"""The tensors of a multi-token head, and whether a head fits a model."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import CheckpointError, PairingError
from paceline.models.checkpoint import Checkpoint, Shape
from paceline.models.dense_config import MODEL_TYPES as DENSE_TYPES
from paceline.models.fields import Fields
from paceline.models.parts import norm_tensors

_OUTER_NORMS = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")


def head_shapes(checkpoint: Checkpoint) -> dict[str, Shape]:
    """Names and shapes of the head that fits `checkpoint`: 15 tensors, or 19 for a mixture of experts.

    Raises: CheckpointError where config.json lacks a number that they follow from.
    """
    fields = Fields(
        checkpoint.config_file,
        Fields("config.json", checkpoint.config).mapping("text_config"),
        checkpoint.config,
    )
    hidden, head_dim = fields.size("hidden_size"), fields.size("head_dim")
    queries, keys = (fields.size(name) * head_dim for name in ("num_attention_heads", "num_key_value_heads"))
    attention = "mtp.layers.0.self_attn."
    return {
        "mtp.fc.weight": (hidden, 2 * hidden),
        **{f"mtp.{name}.weight": (hidden,) for name in _OUTER_NORMS},
        **norm_tensors("mtp.layers.0.", hidden),
        f"{attention}q_proj.weight": (2 * queries, hidden),
        f"{attention}k_proj.weight": (keys, hidden),
        f"{attention}v_proj.weight": (keys, hidden),
        f"{attention}o_proj.weight": (hidden, queries),
        f"{attention}q_norm.weight": (head_dim,),
        f"{attention}k_norm.weight": (head_dim,),
        **_feed_forward(fields, hidden),
    }


def check_head(head: Mapping[str, Shape], checkpoint: Checkpoint, origin: str) -> None:
    """Raises: PairingError where `head`, found in `origin`, is not the head that fits `checkpoint`."""
    if checkpoint.config.get("model_type") in DENSE_TYPES:
        raise PairingError(
            f"{checkpoint.path}: model_type {checkpoint.config['model_type']!r} has no multi-token head; "
            "draft for it with DFlash or ngram"
        )
    try:
        expected = head_shapes(checkpoint)
    except CheckpointError as error:
        raise PairingError(f"{origin}: no telling which head fits {checkpoint.path}: {error}") from None
    for name, shape in expected.items():
        if name not in head:
            raise PairingError(f"{origin}: the multi-token head lacks {name} {list(shape)}")
        if head[name] != shape:
            raise PairingError(
                f"{origin}: {name} is {list(head[name])}, {checkpoint.path} needs {list(shape)}; "
                "take the head of the model that this checkpoint was made from"
            )
    surplus = sorted(set(head) - set(expected))
    if surplus:
        raise PairingError(f"{origin}: {surplus[0]} is no part of the head that fits {checkpoint.path}")


def _feed_forward(fields: Fields, hidden: int) -> dict[str, Shape]:
    mlp = "mtp.layers.0.mlp."
    experts = fields.get("num_experts")
    if not experts:
        size = fields.size("intermediate_size")
        return {
            f"{mlp}gate_proj.weight": (size, hidden),
            f"{mlp}up_proj.weight": (size, hidden),
            f"{mlp}down_proj.weight": (hidden, size),
        }
    each, shared = fields.size("moe_intermediate_size"), fields.size("shared_expert_intermediate_size")
    return {
        f"{mlp}gate.weight": (experts, hidden),
        f"{mlp}experts.gate_up_proj": (experts, 2 * each, hidden),
        f"{mlp}experts.down_proj": (experts, hidden, each),
        f"{mlp}shared_expert.gate_proj.weight": (shared, hidden),
        f"{mlp}shared_expert.up_proj.weight": (shared, hidden),
        f"{mlp}shared_expert.down_proj.weight": (hidden, shared),
        f"{mlp}shared_expert_gate.weight": (1, hidden),
    }

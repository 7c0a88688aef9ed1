"""Reading a Qwen3.5 / Qwen3.6 config and checking the folder's tensors against it, before any weight is
read."""

from __future__ import annotations

import torch

from paceline.errors import CheckpointError
from paceline.layers.attention import HeadShape
from paceline.models.checkpoint import Checkpoint, Shape, TensorInfo, check_tensors, resolve_dtype
from paceline.models.fields import MAX_LAYERS, Fields, eos_ids, layer_types, rope_spec
from paceline.models.parts import EMBEDDING, HEAD, attention_tensors, mlp_tensors, norm_tensors
from paceline.models.quantized import QuantizedCheckpoint
from paceline.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, TargetSpec

MTP_PREFIX = "mtp."
_MTP_LAYERS = "mtp.layers."
VISION_PREFIXES = ("model.visual.", "visual.")
_DEFAULT_PARTIAL_ROTARY = 0.25  # transformers' default for this architecture


def read_spec(checkpoint: Checkpoint, dtype: str | torch.dtype = "auto") -> TargetSpec:
    """The model's numbers, after every check that needs no weight.

    Raises: CheckpointError for a missing or wrong field or tensor, UnsupportedModelError for a variant that
    this class does not compute.
    """
    fields = Fields(
        checkpoint.config_file,
        Fields("config.json", checkpoint.config).mapping("text_config"),
        checkpoint.config,
    )
    _require_variant(fields)
    prefix, tensors = text_prefix(checkpoint), _text_tensors(checkpoint)
    embedding = tensors.get(prefix + EMBEDDING)
    if embedding is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {prefix}{EMBEDDING} is missing (the embedding table)"
        )
    stored_dtype = fields.get("dtype", fields.get("torch_dtype"))
    spec = _spec(fields, checkpoint, resolve_dtype(dtype, stored_dtype, embedding))
    if spec.tied:
        tensors.pop(HEAD, None)  # `parts.load_head` checks that it is the embedding table
    check_tensors(tensors, _tensor_shapes(spec, prefix), str(checkpoint.path))
    return spec


def vision_tensors(checkpoint: Checkpoint) -> list[str]:
    """Names of the vision tower's tensors, which the text model does without."""
    return [name for name in checkpoint.tensors if name.startswith(VISION_PREFIXES)]


def _text_tensors(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    """The tensors of the language model; `models.mtp` reads the multi-token head's."""
    others = (*VISION_PREFIXES, MTP_PREFIX)
    return {name: info for name, info in checkpoint.tensors.items() if not name.startswith(others)}


def text_prefix(checkpoint: Checkpoint) -> str:
    """Where the text tower lives: "model." or "model.language_model."."""
    nested = "model.language_model."
    return nested if any(name.startswith(nested) for name in checkpoint.tensors) else "model."


def attention_shape(spec: TargetSpec) -> HeadShape:
    """Heads of the gated attention layers, the multi-token head's included."""
    return HeadShape(spec.num_heads, spec.kv_heads, spec.head_dim, spec.rms_eps, zero_centred=True)


def _require_variant(fields: Fields) -> None:
    """Refuse what the architecture's config could switch on and this class does not compute."""
    fields.require("hidden_act", ["silu"], "silu")
    fields.require("attention_bias", [False], False)
    fields.require("attn_output_gate", [True], True)
    fields.require("output_gate_type", ["silu", "swish"], "silu")
    for many, few in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if fields.size(many) % fields.size(few):
            raise CheckpointError(f"{fields.origin}: {many} must be a multiple of {few}")


def _spec(fields: Fields, checkpoint: Checkpoint, dtype: torch.dtype) -> TargetSpec:
    layers, head_dim = fields.size("num_hidden_layers", most=MAX_LAYERS), fields.size("head_dim")
    interval = fields.size("full_attention_interval", 4)
    kinds = tuple(LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(layers))
    max_position = fields.size("max_position_embeddings")
    return TargetSpec(
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        num_layers=layers,
        layer_types=layer_types(fields, layers, (LINEAR_ATTENTION, FULL_ATTENTION), kinds),
        num_heads=fields.size("num_attention_heads"),
        kv_heads=fields.size("num_key_value_heads"),
        head_dim=head_dim,
        rope=rope_spec(fields, head_dim, max_position, _DEFAULT_PARTIAL_ROTARY),
        num_key_heads=fields.size("linear_num_key_heads"),
        num_value_heads=fields.size("linear_num_value_heads"),
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        conv_width=fields.size("linear_conv_kernel_dim", 4, least=2),
        max_position=max_position,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        eos_ids=_eos_ids(fields, checkpoint),
        bos_id=fields.get("bos_token_id"),
        dtype=dtype,
        tied=fields.flag("tie_word_embeddings"),
        quantization=checkpoint.algorithm if isinstance(checkpoint, QuantizedCheckpoint) else None,
        mtp_layers=len({name.split(".")[2] for name in checkpoint.tensors if name.startswith(_MTP_LAYERS)}),
    )


def _eos_ids(fields: Fields, checkpoint: Checkpoint) -> tuple[int, ...]:
    return eos_ids(
        Fields(checkpoint.config_file, checkpoint.config),
        Fields(checkpoint.config_file, fields.mapping("text_config")),
        Fields(str(checkpoint.path / "generation_config.json"), checkpoint.generation_config),
    )


def _tensor_shapes(spec: TargetSpec, prefix: str) -> dict[str, Shape]:
    """Every tensor that the language model needs."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {
        f"{prefix}{EMBEDDING}": (spec.vocab_size, hidden),
        f"{prefix}norm.weight": (hidden,),
    }
    if not spec.tied:
        shapes[HEAD] = (spec.vocab_size, hidden)
    for i, kind in enumerate(spec.layer_types):
        layer = f"{prefix}layers.{i}."
        shapes |= norm_tensors(layer, hidden) | mlp_tensors(f"{layer}mlp.", hidden, spec.intermediate_size)
        if kind == FULL_ATTENTION:
            shapes |= attention_tensors(f"{layer}self_attn.", hidden, attention_shape(spec), gated=True)
        else:
            shapes |= _delta_tensors(f"{layer}linear_attn.", spec)
    return shapes


def _delta_tensors(prefix: str, spec: TargetSpec) -> dict[str, Shape]:
    hidden, heads, delta = spec.hidden_size, spec.num_value_heads, spec.delta_shape
    return {
        f"{prefix}in_proj_qkv.weight": (delta.conv_dim, hidden),
        f"{prefix}in_proj_z.weight": (delta.value_channels, hidden),
        f"{prefix}in_proj_b.weight": (heads, hidden),
        f"{prefix}in_proj_a.weight": (heads, hidden),
        f"{prefix}conv1d.weight": (delta.conv_dim, 1, delta.width),
        f"{prefix}A_log": (heads,),
        f"{prefix}dt_bias": (heads,),
        f"{prefix}norm.weight": (delta.dv,),
        f"{prefix}out_proj.weight": (hidden, delta.value_channels),
    }

"""Reading a llama, qwen2 or qwen3 config and checking the folder's tensors against it, before any weight is
read.

The three differ in two things: qwen2 has biases on queries, keys and values (llama and qwen3 have none, or
with `attention_bias` one on every projection of attention), and qwen3 norms every query and key head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.errors import CheckpointError
from paceline.layers.attention import HeadShape
from paceline.models.checkpoint import Checkpoint, Shape, TensorInfo, check_tensors, resolve_dtype
from paceline.models.fields import MAX_LAYERS, Fields, eos_ids, layer_types, rope_spec
from paceline.models.parts import EMBEDDING, HEAD, attention_tensors, mlp_tensors, norm_tensors
from paceline.models.quantized import QuantizedCheckpoint
from paceline.models.spec import FULL_ATTENTION, TargetSpec

MODEL_TYPES = ("llama", "qwen2", "qwen3")
PREFIX = "model."
_QWEN3_HEAD_DIM = 128  # transformers' default, whatever hidden_size is
_LLAMA_THETA = 10_000.0  # configs of Llama 1 and 2 name none
# Rotary tables that old exports of llama carry along; they follow from the config.
_DERIVED = ".rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class DenseSpec(TargetSpec):
    """A decoder of full attention alone, without gates."""

    head_norms: bool = False
    """Whether queries and keys are normed head by head."""
    biased: tuple[str, ...] = ()
    """The projections of attention that have a bias."""


def read_spec(checkpoint: Checkpoint, dtype: str | torch.dtype = "auto") -> DenseSpec:
    """The model's numbers, after every check that needs no weight.

    Raises: CheckpointError for a missing or wrong field or tensor, UnsupportedModelError for a variant that
    `models.dense` does not compute.
    """
    fields = Fields(checkpoint.config_file, checkpoint.config)
    _require_variant(fields)
    tensors = {name: info for name, info in checkpoint.tensors.items() if not name.endswith(_DERIVED)}
    embedding = tensors.get(PREFIX + EMBEDDING)
    if embedding is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {PREFIX}{EMBEDDING} is missing (the embedding table)"
        )
    spec = _spec(fields, checkpoint, dtype, embedding)
    if spec.tied:
        tensors.pop(HEAD, None)  # `parts.load_head` checks that it is the embedding table
    check_tensors(tensors, _tensor_shapes(spec), str(checkpoint.path))
    return spec


def text_prefix(checkpoint: Checkpoint) -> str:
    """Where the language model's tensors live; the same in every folder."""
    return PREFIX


def attention_shape(spec: TargetSpec) -> HeadShape:
    """Heads of the attention layers; norms are plain."""
    return HeadShape(spec.num_heads, spec.kv_heads, spec.head_dim, spec.rms_eps, zero_centred=False)


def _require_variant(fields: Fields) -> None:
    """Refuse what these configs could switch on and `models.dense` does not compute."""
    fields.require("hidden_act", ["silu"], "silu")
    fields.require("mlp_bias", [False], False)
    fields.require("use_sliding_window", [False], False)
    heads = fields.size("num_attention_heads")
    if heads % fields.size("num_key_value_heads", heads):
        raise CheckpointError(
            f"{fields.origin}: num_attention_heads must be a multiple of num_key_value_heads"
        )


def _spec(
    fields: Fields, checkpoint: Checkpoint, dtype: str | torch.dtype, embedding: TensorInfo
) -> DenseSpec:
    kind = fields.get("model_type")
    layers, heads = fields.size("num_hidden_layers", most=MAX_LAYERS), fields.size("num_attention_heads")
    hidden, max_position = fields.size("hidden_size"), fields.size("max_position_embeddings")
    head_dim = fields.size("head_dim", _QWEN3_HEAD_DIM if kind == "qwen3" else max(hidden // heads, 1))
    theta = _LLAMA_THETA if kind == "llama" else None
    stored_dtype = fields.get("dtype", fields.get("torch_dtype"))
    return DenseSpec(
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        num_layers=layers,
        layer_types=layer_types(fields, layers, (FULL_ATTENTION,), (FULL_ATTENTION,) * layers),
        num_heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=rope_spec(fields, head_dim, max_position, default_partial=1.0, default_theta=theta),
        max_position=max_position,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        eos_ids=eos_ids(
            fields, Fields(str(checkpoint.path / "generation_config.json"), checkpoint.generation_config)
        ),
        bos_id=fields.get("bos_token_id"),
        dtype=resolve_dtype(dtype, stored_dtype, embedding),
        tied=fields.flag("tie_word_embeddings"),
        mtp_layers=0,
        quantization=checkpoint.algorithm if isinstance(checkpoint, QuantizedCheckpoint) else None,
        head_norms=kind == "qwen3",
        biased=_biased(fields, str(kind)),
    )


def _biased(fields: Fields, kind: str) -> tuple[str, ...]:
    inputs = ("q_proj", "k_proj", "v_proj")
    if kind == "qwen2":  # whatever attention_bias says, as in transformers
        return inputs
    return (*inputs, "o_proj") if fields.flag("attention_bias") else ()


def _tensor_shapes(spec: DenseSpec) -> dict[str, Shape]:
    """Every tensor that the model needs."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {
        f"{PREFIX}{EMBEDDING}": (spec.vocab_size, hidden),
        f"{PREFIX}norm.weight": (hidden,),
    }
    if not spec.tied:
        shapes[HEAD] = (spec.vocab_size, hidden)
    for i in range(spec.num_layers):
        layer = f"{PREFIX}layers.{i}."
        shapes |= norm_tensors(layer, hidden) | mlp_tensors(f"{layer}mlp.", hidden, spec.intermediate_size)
        shapes |= attention_tensors(
            f"{layer}self_attn.",
            hidden,
            attention_shape(spec),
            gated=False,
            head_norms=spec.head_norms,
            biased=spec.biased,
        )
    return shapes

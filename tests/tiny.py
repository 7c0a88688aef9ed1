"""Tiny random models for tests, written as folders in Hugging Face layout: target, MTP head, drafter,
tokenizer.

Shapes follow the published checkpoints; sizes are small enough that a folder is written in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 128
EOS, IM_END = 0, 2
MTP = "mtp."
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TinyTarget:
    """A hybrid target's sizes; `TARGETS` names several."""

    hidden_size: int = 64
    intermediate_size: int = 96
    vocab_size: int = VOCAB
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 16
    linear_value_head_dim: int = 16
    full_attention_interval: int = 4
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000_000.0

    @property
    def layer_types(self) -> list[str]:
        interval = self.full_attention_interval
        return [
            "linear_attention" if (i + 1) % interval else "full_attention"
            for i in range(self.num_hidden_layers)
        ]


TARGETS = {
    "plain": TinyTarget(),
    # 3 value heads a key head, as in the 27B; two full layers; dk != dv
    "three": TinyTarget(
        num_hidden_layers=6,
        full_attention_interval=3,
        linear_num_value_heads=6,
        linear_value_head_dim=32,
        num_attention_heads=6,
    ),
    # one value head a key head and a tied head, as in the 0.8B
    "tied": TinyTarget(linear_num_value_heads=2, tie_word_embeddings=True, num_key_value_heads=4),
    # starts with attention, one kv head, an odd hidden size
    "odd": TinyTarget(
        hidden_size=80,
        num_hidden_layers=3,
        full_attention_interval=1,
        num_key_value_heads=1,
        num_attention_heads=5,
    ),
    "wide": TinyTarget(
        hidden_size=128, num_hidden_layers=8, linear_key_head_dim=32, linear_value_head_dim=32
    ),
}
"""Shapes by name. "odd" has full attention only."""


@dataclass(frozen=True)
class TinyDrafter:
    """A DFlash drafter's sizes over the target "plain"."""

    hidden_size: int = 64
    intermediate_size: int = 80
    vocab_size: int = VOCAB
    num_attention_heads: int = 6
    num_key_value_heads: int = 3
    head_dim: int = 16
    max_position_embeddings: int = 1024
    block_size: int = 8
    mask_token_id: int = VOCAB - 1
    target_layer_ids: tuple[int, ...] | None = (0, 2, 3)
    layer_types: tuple[str, ...] = ("full_attention", "full_attention")
    sliding_window: int | None = None
    rope_theta: float = 10_000.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further top-level fields, e.g. is_causal or rope_scaling."""
    nested: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of dflash_config, e.g. causal."""


def random_weight(*shape: int, std: float | None = None) -> torch.Tensor:
    """Normal float32 values; by default scaled so that a product keeps the size of its input."""
    return torch.randn(*shape) * (shape[-1] ** -0.5 if std is None else std)


def target_weights(shape: TinyTarget, seed: int = 0) -> Weights:
    """All tensors of a target under `model.`, and its MTP head under `mtp.`, in float32."""
    torch.manual_seed(seed)
    weights = {
        "model.embed_tokens.weight": random_weight(shape.vocab_size, shape.hidden_size, std=1.0),
        "model.norm.weight": random_weight(shape.hidden_size, std=0.1),
    }
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = random_weight(shape.vocab_size, shape.hidden_size)
    for i, kind in enumerate(shape.layer_types):
        layer = f"model.layers.{i}."
        weights |= _norms(layer, shape.hidden_size) | _mlp(layer, shape.hidden_size, shape.intermediate_size)
        weights |= _gated_attention(layer, shape) if kind == "full_attention" else _delta(layer, shape)
    return weights | mtp_weights(shape)


def mtp_weights(shape: TinyTarget) -> Weights:
    """The 15 tensors of an MTP head."""
    hidden, layer = shape.hidden_size, f"{MTP}layers.0."
    return {
        f"{MTP}fc.weight": random_weight(hidden, 2 * hidden),
        f"{MTP}pre_fc_norm_embedding.weight": random_weight(hidden, std=0.1),
        f"{MTP}pre_fc_norm_hidden.weight": random_weight(hidden, std=0.1),
        f"{MTP}norm.weight": random_weight(hidden, std=0.1),
        **_norms(layer, hidden),
        **_mlp(layer, hidden, shape.intermediate_size),
        **_gated_attention(layer, shape),
    }


def target_config(shape: TinyTarget, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A flat `qwen3_5_text` config."""
    sizes = asdict(shape)
    rope = {name: sizes.pop(name) for name in ("partial_rotary_factor", "rope_theta")}
    return {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        **sizes,
        "layer_types": shape.layer_types,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "eos_token_id": EOS,
        "bos_token_id": EOS,
        "dtype": str(dtype).removeprefix("torch."),
        "rope_parameters": {"rope_type": "default", **rope},
    }


def make_target(
    folder: Path,
    shape: TinyTarget | str = "plain",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    nested: bool = False,
    shards: int = 1,
    mtp: bool = True,
    vision: bool = False,
    tokenizer: bool = True,
) -> Path:
    """Write a random target. nested: the wrapper layout (`text_config`, `model.language_model.*`); shards:
    files; vision: some tensors of a vision tower as well. Returns `folder`."""
    shape = TARGETS[shape] if isinstance(shape, str) else shape
    weights = target_weights(shape, seed)
    config = target_config(shape, dtype)
    if not mtp:
        weights = {name: weight for name, weight in weights.items() if not name.startswith(MTP)}
    if nested:
        weights = {_nested(name): weight for name, weight in weights.items()}
        config.pop("architectures")
        config["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
        config = {
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": config,
            "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 32},
            "tie_word_embeddings": shape.tie_word_embeddings,
            "dtype": config["dtype"],
        }
    if vision:
        weights["model.visual.pos_embed.weight"] = random_weight(4, 32)
    write_folder(folder, config, weights, dtype, shards)
    write_json(folder / "generation_config.json", {"eos_token_id": [IM_END, EOS], "bos_token_id": EOS})
    if tokenizer:
        write_tokenizer(folder, shape.vocab_size)
    return folder


def drafter_weights(shape: TinyDrafter, target_layers: int = 4, seed: int = 1) -> Weights:
    """The 3 + 11 * layers tensors of a DFlash drafter, in float32."""
    torch.manual_seed(seed)
    hidden, layers = shape.hidden_size, len(shape.layer_types)
    taps = layers if shape.target_layer_ids is None else len(shape.target_layer_ids)
    weights = {
        "fc.weight": random_weight(hidden, taps * hidden),
        "hidden_norm.weight": 1 + random_weight(hidden, std=0.1),
        "norm.weight": 1 + random_weight(hidden, std=0.1),
    }
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    for i in range(layers):
        layer = f"layers.{i}."
        weights |= {name: 1 + weight for name, weight in _norms(layer, hidden).items()}
        weights |= _mlp(layer, hidden, shape.intermediate_size)
        weights |= {
            f"{layer}self_attn.q_proj.weight": random_weight(queries, hidden),
            f"{layer}self_attn.k_proj.weight": random_weight(keys, hidden),
            f"{layer}self_attn.v_proj.weight": random_weight(keys, hidden),
            f"{layer}self_attn.o_proj.weight": random_weight(hidden, queries),
            f"{layer}self_attn.q_norm.weight": 1 + random_weight(shape.head_dim, std=0.1),
            f"{layer}self_attn.k_norm.weight": 1 + random_weight(shape.head_dim, std=0.1),
        }
    assert len(weights) == 3 + 11 * layers
    return weights


def drafter_config(
    shape: TinyDrafter, *, in_dflash_config: bool = False, rope_nested: bool = False
) -> dict[str, Any]:
    """A config in the published format, in either of its two places for block_size and rope_theta."""
    taps = {} if shape.target_layer_ids is None else {"target_layer_ids": list(shape.target_layer_ids)}
    block = {"block_size": shape.block_size}
    theta = {"rope_theta": shape.rope_theta}
    names = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: getattr(shape, name) for name in names},
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "num_hidden_layers": len(shape.layer_types),
        "layer_types": list(shape.layer_types),
        "sliding_window": shape.sliding_window,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "dtype": "float32",
        **({} if in_dflash_config else block),
        **({"rope_parameters": {"rope_type": "default", **theta}} if rope_nested else theta),
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            **taps,
            **(block if in_dflash_config else {}),
            **shape.nested,
        },
        **shape.extra,
    }


def make_drafter(
    folder: Path,
    shape: TinyDrafter | None = None,
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    in_dflash_config: bool = False,
    rope_nested: bool = False,
) -> Path:
    """Write a random DFlash drafter. Returns `folder`."""
    shape = shape or TinyDrafter()
    config = drafter_config(shape, in_dflash_config=in_dflash_config, rope_nested=rope_nested)
    write_folder(folder, config, drafter_weights(shape, seed=seed), dtype)
    return folder


def drafter_for(shape: TinyTarget | str = "plain", **changes: Any) -> TinyDrafter:
    """A drafter that fits the target `shape`."""
    shape = TARGETS[shape] if isinstance(shape, str) else shape
    changes.setdefault("mask_token_id", shape.vocab_size - 1)
    fitting = TinyDrafter(hidden_size=shape.hidden_size, vocab_size=shape.vocab_size)
    return replace(fitting, **changes)


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    weights: Weights,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
) -> None:
    """Write config and weights, as one file or as `shards` files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    stored = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(stored.items())[i::shards])
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(path: Path, value: Any) -> None:
    """Write JSON, indented for whoever debugs a test."""
    path.write_text(json.dumps(value, indent=1))


def write_tokenizer(folder: Path, vocab_size: int = VOCAB) -> None:
    """A byte-level tokenizer with a chat template: three special tokens, the printable ASCII bytes, some
    merges.

    It names fewer ids than `vocab_size`, as the published ones do; the rest of the table has no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = ["Ġ", "Ċ", *(chr(c) for c in range(33, 127))]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n")]
    names = special + characters + ["".join(pair) for pair in merges]
    assert len(names) < vocab_size, f"a tiny tokenizer has {len(names)} ids"
    bpe = models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0])
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)


def _nested(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def _norms(layer: str, hidden: int) -> Weights:
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{layer}{name}.weight": random_weight(hidden, std=0.1) for name in names}


def _mlp(layer: str, hidden: int, intermediate: int) -> Weights:
    return {
        f"{layer}mlp.gate_proj.weight": random_weight(intermediate, hidden),
        f"{layer}mlp.up_proj.weight": random_weight(intermediate, hidden),
        f"{layer}mlp.down_proj.weight": random_weight(hidden, intermediate),
    }


def _gated_attention(layer: str, shape: TinyTarget) -> Weights:
    hidden, dim = shape.hidden_size, shape.head_dim
    queries, keys = shape.num_attention_heads * dim, shape.num_key_value_heads * dim
    return {
        f"{layer}self_attn.q_proj.weight": random_weight(2 * queries, hidden),
        f"{layer}self_attn.k_proj.weight": random_weight(keys, hidden),
        f"{layer}self_attn.v_proj.weight": random_weight(keys, hidden),
        f"{layer}self_attn.o_proj.weight": random_weight(hidden, queries),
        f"{layer}self_attn.q_norm.weight": random_weight(dim, std=0.1),
        f"{layer}self_attn.k_norm.weight": random_weight(dim, std=0.1),
    }


def _delta(layer: str, shape: TinyTarget) -> Weights:
    hidden, heads = shape.hidden_size, shape.linear_num_value_heads
    values = heads * shape.linear_value_head_dim
    channels = 2 * shape.linear_num_key_heads * shape.linear_key_head_dim + values
    return {
        f"{layer}linear_attn.in_proj_qkv.weight": random_weight(channels, hidden),
        f"{layer}linear_attn.in_proj_z.weight": random_weight(values, hidden),
        f"{layer}linear_attn.in_proj_b.weight": random_weight(heads, hidden),
        f"{layer}linear_attn.in_proj_a.weight": random_weight(heads, hidden),
        f"{layer}linear_attn.conv1d.weight": random_weight(channels, 1, 4, std=0.5),
        f"{layer}linear_attn.A_log": torch.empty(heads).uniform_(0.05, 1.0).log(),
        f"{layer}linear_attn.dt_bias": random_weight(heads, std=0.5),
        f"{layer}linear_attn.norm.weight": 1 + random_weight(shape.linear_value_head_dim, std=0.1),
        f"{layer}linear_attn.out_proj.weight": random_weight(hidden, values),
    }

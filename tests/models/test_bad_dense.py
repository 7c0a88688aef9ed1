"""Llama, Qwen2 and Qwen3 folders: what their configs leave out, what is refused, and which published drafters
fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import CheckpointError, ModelError, PairingError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.models.dense_config import DenseSpec
from paceline.models.registry import load_target, read_drafter_spec, read_target_spec
from paceline.models.spec import TargetSpec
from tests import tiny
from tests.quantize.sparse import write_sparse
from tests.tiny_dense import DENSE, TinyDense, dense_config, dense_weights, make_dense
from tests.tiny_drafter import TinyDrafter, drafter_weights

WEIGHTS = "model.safetensors"


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    tiny.write_json(folder / "config.json", config)
    return folder


def edit_weights(folder: Path, change: Callable[[tiny.Weights], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def refused(folder: Path, kind: type[ModelError], *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_target(folder)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message and all(part in message for part in parts), message


VARIANTS: list[tuple[str, dict[str, Any], type[ModelError], tuple[str, ...]]] = [
    ("llama", {"hidden_act": "gelu"}, UnsupportedModelError, ("hidden_act", "gelu")),
    ("llama", {"mlp_bias": True}, UnsupportedModelError, ("mlp_bias",)),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 64}, UnsupportedModelError, ("use_sliding",)),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, UnsupportedModelError, ("sliding_attention",)),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, UnsupportedModelError, ("dynamic",)),
    ("qwen3", {"num_key_value_heads": 3}, CheckpointError, ("num_attention_heads", "multiple")),
    ("qwen3", {"rope_theta": None}, CheckpointError, ("rope_theta",)),
    (
        "llama3",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        CheckpointError,
        ("low_freq_factor",),
    ),
    (
        "llama3",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4}},
        CheckpointError,
        ("high_freq_factor", "greater"),
    ),
]


@pytest.mark.parametrize(("name", "change", "kind", "parts"), VARIANTS)
def test_variants_that_are_not_computed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: dict[str, Any],
    kind: type[ModelError],
    parts: tuple[str, ...],
) -> None:
    folder = edited(make_dense(tmp_path, name, tokenizer=False), lambda config: config.update(change))
    monkeypatch.setattr(Checkpoint, "weight", None)  # reading a weight would fail otherwise
    refused(folder, kind, *parts)


TENSORS: list[tuple[str, Callable[[tiny.Weights], object], tuple[str, ...]]] = [
    ("qwen2", lambda w: w.pop("model.layers.1.self_attn.k_proj.bias"), ("k_proj.bias", "missing")),
    ("qwen3", lambda w: w.pop("model.layers.0.self_attn.q_norm.weight"), ("q_norm.weight", "missing")),
    ("biased", lambda w: w.pop("model.layers.2.self_attn.o_proj.bias"), ("o_proj.bias", "missing")),
    (
        "llama",
        lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}),
        ("q_proj.bias",),
    ),
    ("llama3", lambda w: w.pop("lm_head.weight"), ("lm_head.weight", "missing")),
    ("llama", lambda w: w.update({"lm_head.weight": torch.zeros(128, 96)}), ("lm_head.weight", "differs")),
    ("llama", lambda w: w.pop("model.embed_tokens.weight"), ("embed_tokens", "missing")),
]


@pytest.mark.parametrize(("name", "change", "parts"), TENSORS)
def test_wrong_tensors(
    tmp_path: Path, name: str, change: Callable[[tiny.Weights], object], parts: tuple[str, ...]
) -> None:
    folder = make_dense(tmp_path, name, tokenizer=False)
    edit_weights(folder, change)
    refused(folder, CheckpointError, *parts)


def test_what_configs_leave_out(tmp_path: Path) -> None:
    """Defaults are transformers'."""
    llama = edited(
        make_dense(tmp_path / "llama", TinyDense("llama", num_key_value_heads=4), tokenizer=False),
        lambda c: [
            c.pop(name) for name in ("head_dim", "rope_theta", "num_key_value_heads", "use_sliding_window")
        ],
    )
    spec = read_target_spec(llama)
    assert (spec.head_dim, spec.rope.theta, spec.kv_heads, spec.rope.rotary_dim) == (16, 1e4, 4, 16)
    shape = TinyDense("qwen3", head_dim=128)
    qwen3 = edited(make_dense(tmp_path / "qwen3", shape, tokenizer=False), lambda c: c.pop("head_dim"))
    assert read_target_spec(qwen3).head_dim == 128
    assert read_target_spec(qwen3).eos_ids == (tiny.EOS, tiny.IM_END)
    # Published configs name a window that they do not use.
    edited(qwen3, lambda c: c.update(sliding_window=4096, max_window_layers=1))
    assert read_target_spec(qwen3).full_layers == (0, 1, 2)


def test_rotary_tables_of_old_exports_are_no_fault(tmp_path: Path) -> None:
    folder = make_dense(tmp_path, "llama3", tokenizer=False)
    edit_weights(folder, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert load_target(folder).spec.num_layers == 3


@pytest.mark.parametrize("shards", [1, 3])
def test_a_tied_copy_of_the_table_is_accepted(tmp_path: Path, shards: int) -> None:
    shape = DENSE["llama"]
    weights = dense_weights(shape)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    tiny.write_folder(tmp_path, dense_config(shape), weights, shards=shards)
    assert load_target(tmp_path).spec.tied


QWEN3 = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
LLAMA31 = TinyDense(
    "llama",
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rope_theta=500_000.0,
    extra={
        "eos_token_id": [128001, 128008, 128009],
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
)
PUBLISHED = {
    "Qwen3-4B": TinyDense(
        "qwen3", 2560, 9728, 151936, **QWEN3, max_position_embeddings=40960, tie_word_embeddings=True,
        rope_theta=1e6,
    ),
    "Qwen3-8B": TinyDense(
        "qwen3", 4096, 12288, 151936, **QWEN3, max_position_embeddings=40960, rope_theta=1e6
    ),
    "Llama-3.1-8B": LLAMA31,
}  # fmt: skip
# (taps, block_size, mask_token_id, parameters); Qwen3's are the published configs' and tensor sizes
DRAFTERS = {
    "Qwen3-4B": ((1, 9, 17, 25, 33), 16, 151669, 537_427_200),
    "Qwen3-8B": ((1, 9, 17, 25, 33), 16, 151669, 1_048_626_432),
    "Llama-3.1-8B": ((1, 8, 15, 22, 29), 10, 128002, None),
}


def sparse_target(folder: Path, name: str) -> TargetSpec:
    """A target of real size, as headers without weights."""
    shape = PUBLISHED[name]
    with torch.device("meta"):
        weights = dense_weights(shape)
    config = dense_config(shape, torch.bfloat16)
    return read_target_spec(write_sparse(folder, config, {n: tuple(w.shape) for n, w in weights.items()}))


def sparse_drafter(folder: Path, name: str, **changes: Any) -> Path:
    target, (taps, block, mask, _) = PUBLISHED[name], DRAFTERS[name]
    shape = TinyDrafter(
        target.hidden_size, target.intermediate_size, target.vocab_size, 32, 8, 128, 40960, block, mask, taps,
        ("full_attention",) * 5,
    )  # fmt: skip
    config = {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "block_size": block,
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": list(taps)},
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "layer_types": list(shape.layer_types),
        "max_position_embeddings": 40960,
        "max_window_layers": 5,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "num_target_layers": target.num_hidden_layers,
        "rms_norm_eps": 1e-06,
        "rope_scaling": target.extra.get("rope_scaling"),
        "rope_theta": target.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": target.vocab_size,
        **changes,
    }
    with torch.device("meta"):
        weights = drafter_weights(shape)
    return write_sparse(folder, config, {n: tuple(w.shape) for n, w in weights.items()})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_pairs(tmp_path: Path, name: str) -> None:
    target = sparse_target(tmp_path / "target", name)
    assert isinstance(target, DenseSpec) and target.linear_layers == ()
    folder = sparse_drafter(tmp_path / "drafter", name)
    drafter = read_drafter_spec(folder, target)
    taps, block, mask, parameters = DRAFTERS[name]
    assert (drafter.target_layer_ids, drafter.block_size, drafter.mask_token_id) == (taps, block, mask)
    assert drafter.rope == target.rope and drafter.windows == (None,) * 5
    counted = sum(torch.Size(info.shape).numel() for info in Checkpoint.open(folder).tensors.values())
    assert parameters is None or counted == parameters


def test_a_drafter_of_the_other_size_is_refused(tmp_path: Path) -> None:
    target = sparse_target(tmp_path / "target", "Qwen3-4B")
    with pytest.raises(PairingError, match="hidden_size is 4096, the target's hidden size is 2560"):
        read_drafter_spec(sparse_drafter(tmp_path / "drafter", "Qwen3-8B"), target)

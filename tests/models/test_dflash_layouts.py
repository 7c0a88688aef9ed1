"""Drafters in the layout of vLLM's speculators are the same drafters; what would run wrongly is refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from paceline.errors import CheckpointError, ModelError, PairingError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.models.dflash_layouts import zlab_config
from paceline.models.registry import load_drafter, read_drafter_spec, read_target_spec
from tests import tiny

SHAPE = tiny.drafter_for(
    "plain", layer_types=("sliding_attention", "full_attention"), sliding_window=6, target_layer_ids=(0, 1, 3)
)


def speculators_folder(folder: Path, **changes: Any) -> Path:
    """A drafter as speculators saves it: `Qwen3Config.to_diff_dict` within, tables beside."""
    tiny.make_drafter(folder, SHAPE)
    flat = json.loads((folder / "config.json").read_text())
    names = (
        "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "max_position_embeddings", "num_hidden_layers", "layer_types", "sliding_window",
    )  # fmt: skip
    inner = Qwen3Config(
        **{name: flat[name] for name in names},
        use_sliding_window=True,
        rope_parameters={"rope_type": "default", "rope_theta": flat["rope_theta"]},
    ).to_diff_dict()
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_config": {"algorithm": "dflash"},
        "transformer_layer_config": inner,
        "draft_vocab_size": flat["vocab_size"],
        "block_size": flat["block_size"],
        "aux_hidden_state_layer_ids": [tap + 1 for tap in flat["dflash_config"]["target_layer_ids"]],
        "mask_token_id": flat["dflash_config"]["mask_token_id"],
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        **changes,
    }
    weights = Checkpoint.open(folder)
    tensors = {name: weights.weight(name) for name in weights.tensors}
    tables = {
        name: torch.zeros(SHAPE.vocab_size, SHAPE.hidden_size)
        for name in ("embed_tokens.weight", "lm_head.weight")
    }
    tiny.write_folder(folder, {k: v for k, v in config.items() if v is not None}, tensors | tables)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return read_target_spec(tiny.make_target(tmp_path_factory.mktemp("target"), "plain"))


def test_both_layouts_give_the_same_numbers(tmp_path: Path, target: Any) -> None:
    plain = tiny.make_drafter(tmp_path / "zlab", SHAPE)
    other = speculators_folder(tmp_path / "speculators")
    assert read_drafter_spec(other, target) == read_drafter_spec(plain, target)
    with warnings.catch_warnings():  # frozen tables belong to the layout and are no oddity
        warnings.simplefilter("error")
        load_drafter(other, target)


def test_windows_may_look_both_ways(tmp_path: Path, target: Any) -> None:
    folder = speculators_folder(tmp_path, sliding_window_non_causal=True)
    assert read_drafter_spec(folder, target).causal == (False, False)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"draft_vocab_size": 64}, UnsupportedModelError, "d2t and t2d"),
        ({"aux_hidden_state_layer_ids": [0, 2]}, UnsupportedModelError, "the embedding"),
        ({"aux_hidden_state_layer_ids": None}, PairingError, "aux_hidden_state_layer_ids is missing"),
        ({"aux_hidden_state_layer_ids": [1, 2, 5]}, PairingError, "names layer 4"),
        ({"speculators_model_type": "eagle3"}, UnsupportedModelError, "speculators_model_type is 'eagle3'"),
        ({"sample_from_anchor": True}, UnsupportedModelError, "sample_from_anchor"),
        ({"mask_token_id": None}, CheckpointError, "mask_token_id"),
        ({"mask_token_id": 128}, PairingError, "beyond the target's embedding table"),
        ({"transformer_layer_config": None}, CheckpointError, "transformer_layer_config"),
        ({"transformer_layer_config": 3}, CheckpointError, "transformer_layer_config"),
    ],
)
def test_what_would_run_wrongly_is_refused_by_name(
    tmp_path: Path, target: Any, changes: dict[str, Any], error: type[ModelError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        read_drafter_spec(speculators_folder(tmp_path, **changes), target)
    assert "\n" not in str(caught.value)


def test_zlab_configs_pass_as_they_are() -> None:
    config = {"architectures": ["DFlashDraftModel"], "block_size": 4}
    assert zlab_config("config.json", config) is config

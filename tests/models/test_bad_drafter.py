"""Drafters that do not fit: each refused with its own message, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import CheckpointError, ModelError, PairingError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.models.dflash_config import warn_of_oddities
from paceline.models.registry import load_drafter, read_drafter_spec, read_target_spec
from paceline.models.spec import TargetSpec
from tests import tiny

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    return read_target_spec(tiny.make_target(tmp_path_factory.mktemp("target"), tokenizer=False))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Checkpoint, name: str) -> torch.Tensor:
        raise AssertionError(f"weight {name} was read before the checks were done")

    monkeypatch.setattr(Checkpoint, "weight", refuse)


pytestmark = pytest.mark.usefixtures("no_weights")


def drafter(folder: Path, config: dict[str, Any] | None = None, **shape: Any) -> Path:
    """A drafter folder; `config` changes fields afterwards (None removes one)."""
    tiny.make_drafter(folder, tiny.drafter_for("plain", **shape))
    stored = json.loads((folder / "config.json").read_text()) | (config or {})
    tiny.write_json(folder / "config.json", {k: v for k, v in stored.items() if v is not None})
    return folder


def refused(
    folder: Path, target: TargetSpec, kind: type[ModelError], *parts: str, tokens: int | None = None
) -> None:
    with pytest.raises(ModelError) as caught:
        load_drafter(folder, target, num_speculative_tokens=tokens)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    for part in parts:
        assert part in message


PAIRINGS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"hidden_size": 32}, ("hidden_size is 32", "hidden size is 64")),
    ({"vocab_size": 100}, ("vocab_size is 100", "vocabulary is 128")),
    ({"target_layer_ids": (0, 4)}, ("layer 4", "last layer 3")),
    ({"mask_token_id": 128}, ("mask_token_id 128", "128 rows")),
    ({"layer_types": (FULL, SLIDING)}, ("layer 1", "sliding layer without a window")),
    ({"nested": {"use_swa": True}}, ("sliding layer without a window", "swa_window_size")),
    ({"extra": {"target_hidden_size": 96}}, ("target_hidden_size is 96",)),
    ({"num_key_value_heads": 4}, ("num_attention_heads", "multiple")),
]


@pytest.mark.parametrize(("shape", "parts"), PAIRINGS)
def test_wrong_pairings(
    tmp_path: Path, target: TargetSpec, shape: dict[str, Any], parts: tuple[str, ...]
) -> None:
    refused(drafter(tmp_path, **shape), target, PairingError, *parts)


def test_pairing_messages_differ(tmp_path: Path, target: TargetSpec) -> None:
    messages = set()
    for i, (shape, _) in enumerate(PAIRINGS):
        with pytest.raises(PairingError) as caught:
            read_drafter_spec(drafter(tmp_path / str(i), **shape), target)
        messages.add(str(caught.value).split("config.json: ")[1])
    assert len(messages) == len(PAIRINGS)


@pytest.mark.parametrize("name", ["fc.weight", "hidden_norm.weight", "layers.1.self_attn.k_norm.weight"])
def test_missing_tensor(tmp_path: Path, target: TargetSpec, name: str) -> None:
    folder = drafter(tmp_path)
    weights = load_file(folder / "model.safetensors")
    shape = list(weights.pop(name).shape)
    save_file(weights, folder / "model.safetensors")
    refused(folder, target, PairingError, name, "missing", str(shape))


def test_taps_that_do_not_match_the_projection(tmp_path: Path, target: TargetSpec) -> None:
    folder = drafter(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 1]
    tiny.write_json(folder / "config.json", config)
    refused(folder, target, CheckpointError, "fc.weight", "[64, 192]", "[64, 128]")


def test_surplus_tensor(tmp_path: Path, target: TargetSpec) -> None:
    folder = drafter(tmp_path)
    weights = load_file(folder / "model.safetensors") | {"aux_hidden_norms.0.weight": torch.ones(64)}
    save_file(weights, folder / "model.safetensors")
    refused(folder, target, CheckpointError, "aux_hidden_norms.0.weight", "surplus")


def test_exported_tables_are_left_out_with_a_notice(tmp_path: Path, target: TargetSpec) -> None:
    folder = drafter(tmp_path)
    weights = load_file(folder / "model.safetensors")
    tables = {"embed_tokens.weight": torch.zeros(128, 64), "lm_head.weight": torch.zeros(128, 64)}
    save_file(weights | tables, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"embed_tokens.weight, lm_head.weight ignored"):
        warn_of_oddities(Checkpoint.open(folder), target)
    read_drafter_spec(folder, target)
    save_file(weights | {"lm_head.weight": torch.zeros(32, 64)}, folder / "model.safetensors")
    refused(folder, target, CheckpointError, "lm_head.weight", "surplus", "[32, 64]")


@pytest.mark.parametrize("tokens", [8, 15])
def test_more_tokens_than_a_block_drafts(tmp_path: Path, target: TargetSpec, tokens: int) -> None:
    folder = drafter(tmp_path)
    assert read_drafter_spec(folder, target, 7).max_speculative_tokens == 7
    refused(folder, target, PairingError, f"is {tokens}", "block_size 8", "at most 7", tokens=tokens)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, ("DFlash2",)),
        ({"dflash_config": {"selector_rank": 256, "mask_token_id": 5}}, ("DFlash2", "selector_rank")),
        ({"architectures": ["Qwen3ForCausalLM"]}, ("Qwen3ForCausalLM", "DFlashDraftModel")),
        ({"architectures": None, "dflash_config": None}, ("mask_token_id",)),
        ({"sample_from_anchor": True}, ("sample_from_anchor",)),
        ({"final_logit_softcapping": 30.0}, ("final_logit_softcapping",)),
        ({"draft_vocab_size": 64}, ("draft_vocab_size",)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ("linear", "yarn")),
        ({"layer_types": ["full_attention", "chunked_attention"]}, ("chunked_attention",)),
    ],
)
def test_other_kinds_of_drafter(
    tmp_path: Path, target: TargetSpec, config: dict[str, Any], parts: tuple[str, ...]
) -> None:
    refused(drafter(tmp_path, config), target, UnsupportedModelError, *parts)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"block_size": None}, "block_size"),
        ({"block_size": 1}, "block_size"),
        ({"architectures": 5}, "architectures"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"rope_theta": None}, "rope_theta"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"is_causal": "yes"}, "is_causal"),
        ({"dflash_config": {"mask_token_id": -1}}, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0.5]}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": []}}, "target_layer_ids"),
    ],
)
def test_wrong_fields(tmp_path: Path, target: TargetSpec, config: dict[str, Any], part: str) -> None:
    refused(drafter(tmp_path, config), target, CheckpointError, "config.json", part)


def test_another_number_of_target_layers_is_worth_a_warning(tmp_path: Path, target: TargetSpec) -> None:
    with pytest.warns(UserWarning, match="36 target layers"):
        warn_of_oddities(Checkpoint.open(drafter(tmp_path, {"num_target_layers": 36})), target)

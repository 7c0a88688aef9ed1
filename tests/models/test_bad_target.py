"""Every way in which a target folder can be wrong: one line, of the right kind, before any weight is read."""

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
from paceline.models.registry import load_mtp, load_target, read_mtp_spec, read_target_spec
from tests import tiny

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.make_target(tmp_path / "target", tokenizer=False)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when a weight is read."""

    def refuse(_self: Checkpoint, name: str) -> torch.Tensor:
        raise AssertionError(f"weight {name} was read before the checks were done")

    monkeypatch.setattr(Checkpoint, "weight", refuse)


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    tiny.write_json(folder / "config.json", config)


def edit_weights(folder: Path, change: Callable[[tiny.Weights], None]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def refused(folder: Path, kind: type[ModelError], *parts: str) -> None:
    """Loading fails with exactly `kind` and a single line that holds every part."""
    with pytest.raises(ModelError) as caught:
        load_target(folder)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    for part in parts:
        assert part in message


pytestmark = pytest.mark.usefixtures("no_weights")


def test_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", CheckpointError, "nothing", "does not exist")


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    refused(folder / WEIGHTS, CheckpointError, "not a folder")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, CheckpointError, "config.json")


@pytest.mark.parametrize("text", ["{", "[1]", "\x00", "[" * 100_000, '{"x": ' + "9" * 5000 + "}"])
def test_unreadable_json(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, CheckpointError, "config.json", "JSON")


def test_config_that_is_not_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe")
    refused(folder, CheckpointError, "config.json", "cannot be read")


def test_unreadable_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    refused(folder, CheckpointError, "generation_config.json")


def test_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    refused(folder, CheckpointError, WEIGHTS, "index")


@pytest.mark.parametrize("keep", [0, 4, 100, -7])
def test_truncated_safetensors(folder: Path, keep: int) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:keep])
    refused(folder, CheckpointError, WEIGHTS, "truncated")


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("gemma3_text", "Gemma3ForCausalLM"),
    ],
)
def test_other_architectures_are_refused_by_name(folder: Path, kind: str, architecture: str) -> None:
    edit_config(folder, lambda c: c.update(model_type=kind, architectures=[architecture]))
    (folder / WEIGHTS).unlink()  # the name alone is enough
    refused(folder, UnsupportedModelError, kind, architecture, "qwen3_5")


def test_missing_tensor(folder: Path) -> None:
    name = "model.layers.1.linear_attn.A_log"
    edit_weights(folder, lambda w: w.pop(name))
    refused(folder, CheckpointError, name, "missing", "[4]")


def test_missing_embedding(folder: Path) -> None:
    edit_weights(folder, lambda w: w.pop("model.embed_tokens.weight"))
    refused(folder, CheckpointError, "model.embed_tokens.weight", "missing")


def test_missing_output_matrix(folder: Path) -> None:
    edit_weights(folder, lambda w: w.pop("lm_head.weight"))
    refused(folder, CheckpointError, "lm_head.weight", "[128, 64]")


def test_surplus_tensor(folder: Path) -> None:
    name = "model.layers.0.linear_attn.in_proj_qkv.bias"
    edit_weights(folder, lambda w: w.update({name: torch.zeros(3)}))
    refused(folder, CheckpointError, name, "surplus", "[3]", "none")


def test_misshaped_tensor(folder: Path) -> None:
    name = "model.layers.3.self_attn.q_proj.weight"
    edit_weights(folder, lambda w: w.update({name: torch.zeros(128, 64)}))
    refused(folder, CheckpointError, name, "[128, 64]", "[256, 64]")


def test_other_stored_dtype(folder: Path) -> None:
    name = "model.norm.weight"
    edit_weights(folder, lambda w: w.update({name: w[name].half()}))
    refused(folder, UnsupportedModelError, name, "F16")


def test_a_head_that_contradicts_the_tie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # this one fault shows in the weights alone
    folder = tiny.make_target(tmp_path, "tied", tokenizer=False)
    edit_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    load_target(folder)
    edit_weights(folder, lambda w: w.update({"lm_head.weight": w["lm_head.weight"] + 1}))
    refused(folder, CheckpointError, "lm_head.weight", "tie_word_embeddings")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"attn_output_gate": False}, ("attn_output_gate", "True")),
        ({"hidden_act": "gelu"}, ("hidden_act", "silu")),
        ({"attention_bias": True}, ("attention_bias",)),
        ({"output_gate_type": "sigmoid"}, ("output_gate_type", "swish")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("quantization_config",)),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, ("sliding_attention",)),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, ("longrope", "yarn")),
        ({"dtype": "float16"}, ("float16", "--dtype")),
    ],
)
def test_variants_that_are_not_computed(folder: Path, change: dict[str, Any], parts: tuple[str, ...]) -> None:
    edit_config(folder, lambda c: c.update(change))
    refused(folder, UnsupportedModelError, *parts)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"hidden_size": None}, ("hidden_size", "missing")),
        ({"hidden_size": "64"}, ("hidden_size", "'64'", "positive whole number")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers",)),
        ({"num_hidden_layers": True}, ("num_hidden_layers",)),
        ({"num_hidden_layers": 10**30}, ("num_hidden_layers", "at most 10000")),
        ({"hidden_size": 10**30}, ("hidden_size", "at most 2147483647")),
        ({"linear_conv_kernel_dim": 1}, ("linear_conv_kernel_dim", ">= 2")),
        ({"model_type": "gpt2", "architectures": 5}, ("architectures", "list of strings")),
        ({"layer_types": ["full_attention"]}, ("layer_types", "4")),
        ({"rms_norm_eps": -1.0}, ("rms_norm_eps",)),
        ({"eos_token_id": [-1]}, ("eos_token_id",)),
        ({"eos_token_id": "end"}, ("eos_token_id",)),
        ({"num_key_value_heads": 3}, ("num_attention_heads", "multiple")),
        ({"linear_num_value_heads": 3}, ("linear_num_value_heads", "multiple")),
        ({"rope_parameters": {"rope_type": "default"}}, ("rope_theta",)),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.1}}, ("partial_rotary_factor",)),
        ({"tie_word_embeddings": "no"}, ("tie_word_embeddings",)),
        ({"text_config": 3}, ("text_config",)),
    ],
)
def test_wrong_fields(folder: Path, change: dict[str, Any], parts: tuple[str, ...]) -> None:
    edit_config(folder, lambda c: c.update(change))
    refused(folder, CheckpointError, "config.json", *parts)


class TestIndex:
    """An index that disagrees with its files."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tiny.make_target(tmp_path / "sharded", tokenizer=False, shards=3)

    def edit(self, folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index)
        tiny.write_json(path, index)

    def test_missing_file(self, folder: Path) -> None:
        (folder / "model-00002-of-00003.safetensors").unlink()
        refused(folder, CheckpointError, "model-00002-of-00003.safetensors", "does not exist")

    def test_truncated_file(self, folder: Path) -> None:
        path = folder / "model-00003-of-00003.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        refused(folder, CheckpointError, path.name, "truncated")

    def test_tensor_that_is_not_in_its_file(self, folder: Path) -> None:
        self.edit(folder, lambda i: i["weight_map"].update(ghost="model-00001-of-00003.safetensors"))
        refused(folder, CheckpointError, "ghost", "model-00001-of-00003.safetensors")

    def test_no_weight_map(self, folder: Path) -> None:
        self.edit(folder, lambda i: i.pop("weight_map"))
        refused(folder, CheckpointError, "weight_map")

    def test_file_outside_the_folder(self, folder: Path) -> None:
        self.edit(folder, lambda i: i["weight_map"].update(ghost="../other.safetensors"))
        refused(folder, CheckpointError, "../other.safetensors")


class TestMtp:
    """The head inside a target's folder."""

    def refused(self, folder: Path, kind: type[ModelError], *parts: str) -> None:
        with pytest.raises(kind) as caught:
            read_mtp_spec(folder, read_target_spec(folder))
        for part in parts:
            assert part in str(caught.value)

    def test_none(self, tmp_path: Path) -> None:
        self.refused(
            tiny.make_target(tmp_path, mtp=False, tokenizer=False), PairingError, "no multi-token head"
        )

    def test_missing_tensor(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w.pop("mtp.norm.weight"))
        self.refused(folder, PairingError, "mtp.norm.weight", "missing", "[64]")

    def test_misshaped_tensor(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w.update({"mtp.fc.weight": torch.zeros(64, 64)}))
        self.refused(folder, CheckpointError, "mtp.fc.weight", "[64, 64]", "[64, 128]")

    def test_several_layers(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w.update({"mtp.layers.1.input_layernorm.weight": torch.zeros(64)}))
        self.refused(folder, UnsupportedModelError, "2 layers")

    def test_its_own_embedding(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w.update({"mtp.embed_tokens.weight": torch.zeros(128, 64)}))
        self.refused(folder, UnsupportedModelError, "embedding table")

    def test_a_faulty_head_does_not_keep_the_target_from_loading(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        edit_weights(folder, lambda w: w.pop("mtp.norm.weight"))
        monkeypatch.undo()
        target = load_target(folder)
        with pytest.raises(PairingError):
            load_mtp(folder, target)


@pytest.mark.parametrize("inner", ["best", "last"])
def test_the_folder_of_a_run_leads_to_the_model_in_it(folder: Path, inner: str) -> None:
    folder.rename(folder.parent / inner)
    with pytest.raises(CheckpointError, match=f"is the folder of a training run, no model: name .*/{inner}$"):
        read_target_spec(folder.parent)

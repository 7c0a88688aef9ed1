"""`graft-mtp`: bit for bit, idempotent, and loadable after every step."""

from __future__ import annotations

import json

import pytest
import torch

from paceline.errors import CheckpointError, ConfigError, PairingError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.quantize import graft
from paceline.quantize.graft import graft_mtp
from paceline.quantize.inspect import inspect
from paceline.quantize.mtp_head import head_shapes
from paceline.quantize.output_folder import OutputOptions
from tests.quantize.folders import contents, edit_tensors, quantize_tiny, same, tensors_of, tiny_model
from tests.tiny import TARGETS, random_weight, target_config, write_folder, write_json


@pytest.fixture
def base(tmp_path):
    return tiny_model(tmp_path / "base")


@pytest.fixture
def headless(base, tmp_path):
    """The base, quantised by a tool that loses the head but leaves its declaration."""
    quantize_tiny(base, tmp_path / "quantised", mtp="drop")
    config = read_json(tmp_path / "quantised" / "config.json")
    config["text_config"]["mtp_num_hidden_layers"] = 1
    write_json(tmp_path / "quantised" / "config.json", config)
    return tmp_path / "quantised"


def read_json(path):
    return json.loads(path.read_text())


def grafted_well(base, folder):
    head = {name: tensor for name, tensor in tensors_of(base).items() if name.startswith("mtp.")}
    after = tensors_of(folder)
    assert len(head) == 15 and all(same(after[name], tensor) for name, tensor in head.items())
    config = read_json(folder / "config.json")
    assert config["text_config"]["mtp_num_hidden_layers"] == 1
    excluded = read_json(folder / "hf_quant_config.json")["quantization"]["exclude_modules"]
    assert {"mtp*", "mtp.layers.0*"} <= set(config["quantization_config"]["ignore"]) & set(excluded)
    assert inspect(folder).problems == []
    return True


def test_in_place_and_twice(base, headless):
    assert {problem.code for problem in inspect(headless).problems} == {"mtp-absent"}
    before = tensors_of(headless)
    report = graft_mtp(base, headless)
    assert grafted_well(base, headless)
    assert len(report.hashes) == 15 and not (headless / "model.safetensors").exists()
    after = tensors_of(headless)
    assert all(same(after[name], tensor) for name, tensor in before.items())
    index = read_json(headless / "model.safetensors.index.json")
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in after.values())
    files = contents(headless)
    again = graft_mtp(base, headless)
    assert again.changed == [] and again.hashes == report.hashes and contents(headless) == files


def test_into_a_copy(base, headless, tmp_path):
    before = contents(headless)
    graft_mtp(base, headless, tmp_path / "out")
    assert grafted_well(base, tmp_path / "out") and contents(headless) == before
    with pytest.raises(ConfigError, match="--force"):
        graft_mtp(base, headless, tmp_path / "out")
    graft_mtp(base, headless, tmp_path / "out", OutputOptions(force=True))
    with pytest.raises(ConfigError, match="does not resume"):
        graft_mtp(base, headless, tmp_path / "out2", OutputOptions(resume=True))


def test_a_sharded_checkpoint_keeps_its_shards(base, tmp_path):
    quantize_tiny(base, tmp_path / "quantised", mtp="drop", shard_size=40_000)
    before = contents(tmp_path / "quantised")
    graft_mtp(base, tmp_path / "quantised")
    after = contents(tmp_path / "quantised")
    shards = {name: value for name, value in before.items() if name.endswith(".safetensors")}
    assert shards.items() <= after.items() and set(after) - set(before) == {"mtp.safetensors"}
    assert grafted_well(base, tmp_path / "quantised")


@pytest.mark.parametrize("step", ["_write_head", "_write_index", "_rewrite"])
def test_a_run_stopped_at_any_step_loads_and_is_finished_by_the_next(base, headless, monkeypatch, step):
    names = set(Checkpoint.open(headless).tensors)
    with monkeypatch.context() as patch:

        def stop(*_):
            raise KeyboardInterrupt

        patch.setattr(graft, step, stop)
        with pytest.raises(KeyboardInterrupt):
            graft_mtp(base, headless)
    assert names <= set(Checkpoint.open(headless).tensors)
    graft_mtp(base, headless)
    assert grafted_well(base, headless)


def test_heads_that_do_not_fit(base, headless, tmp_path):
    other = tiny_model(tmp_path / "other", shape="wide")
    files = contents(headless)
    with pytest.raises(PairingError, match=r"mtp\.fc\.weight is \[128, 256\], .* needs \[64, 128\]"):
        graft_mtp(other, headless)
    with pytest.raises(PairingError, match="no multi-token head"):
        graft_mtp(tiny_model(tmp_path / "none", mtp=False), headless)
    edit_tensors(other, lambda t: {n: w for n, w in t.items() if n != "mtp.norm.weight"})
    edit_tensors(base, lambda t: {n: w for n, w in t.items() if n != "mtp.norm.weight"})
    with pytest.raises(PairingError, match=r"lacks mtp\.norm\.weight"):
        graft_mtp(base, headless)
    edit_tensors(base, lambda t: t | {"mtp.norm.weight": torch.ones(64).half()})
    with pytest.raises(UnsupportedModelError, match="stored as F16"):
        graft_mtp(base, headless)
    assert contents(headless) == files


def test_another_head(base, headless, tmp_path):
    newer = tiny_model(tmp_path / "newer", seed=1)
    graft_mtp(base, headless)
    graft_mtp(newer, headless)  # the head is a file of its own, so it can be replaced
    assert grafted_well(newer, headless)
    quantize_tiny(base, tmp_path / "whole")
    with pytest.raises(ConfigError, match="--mtp BASE"):
        graft_mtp(newer, tmp_path / "whole")


def test_writing_is_verified(base, headless, monkeypatch):
    write = graft.ShardWriter.write
    monkeypatch.setattr(graft.ShardWriter, "write", lambda self, name, t: write(self, name, t + 1))
    with pytest.raises(CheckpointError, match="differs from the base"):
        graft_mtp(base, headless)


def test_nineteen_tensors_of_a_mixture_of_experts(tmp_path):
    text = target_config(TARGETS["plain"]) | {
        "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32,
    }  # fmt: skip
    config = {"model_type": "qwen3_5_moe", "text_config": text}
    body = {"lm_head.weight": random_weight(8, 64)}
    write_folder(tmp_path / "quantised", config, body, torch.bfloat16)
    head = {n: random_weight(*s) for n, s in head_shapes(Checkpoint.open(tmp_path / "quantised")).items()}
    write_folder(tmp_path / "base", config, body | head, torch.bfloat16)
    report = graft_mtp(tmp_path / "base", tmp_path / "quantised")
    assert len(report.hashes) == 19
    assert inspect(tmp_path / "quantised").mtp == "present"


def test_a_compressed_tensors_checkpoint_gets_its_own_pattern(base, tmp_path):
    plain = tiny_model(tmp_path / "plain", mtp=False)
    config = read_json(plain / "config.json")
    config["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
    write_json(plain / "config.json", config)
    graft_mtp(base, plain)
    assert read_json(plain / "config.json")["quantization_config"]["ignore"] == ["lm_head", "re:.*mtp.*"]


@pytest.mark.parametrize("value", ["abc", {"exclude_modules": 5}])
def test_a_malformed_description_is_refused_before_anything_is_written(base, headless, value):
    write_json(headless / "hf_quant_config.json", {"quantization": value})
    before = contents(headless)
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json"):
        graft_mtp(base, headless)
    assert contents(headless) == before

"""Plans from headers alone: counts and sizes of the published checkpoints, recipes, and refusals."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import CheckpointError, ConfigError, PairingError, UnsupportedModelError
from paceline.quantize.plan import QuantizeOptions, plan_quantization
from paceline.quantize.quant_config import describe
from paceline.quantize.recipe import load_recipe
from tests.quantize.sparse import write_27b
from tests.tiny import (
    TARGETS,
    TinyTarget,
    make_target,
    target_config,
    target_weights,
    write_folder,
    write_json,
)


@pytest.fixture(scope="module")
def qwen36(tmp_path_factory):
    return write_27b(tmp_path_factory.mktemp("27b"))


@pytest.fixture
def tiny(tmp_path):
    return make_target(tmp_path / "model", "wide", dtype=torch.bfloat16, nested=True, tokenizer=False)


def recipe_file(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("options", "count", "gigabytes"),
    [
        (QuantizeOptions("regular"), 1967, 28.55),
        (QuantizeOptions("xs"), 2399, 20.59),
        (QuantizeOptions("xs", legacy_ab=True), 2687, 20.56),
        (QuantizeOptions("regular", mtp="drop"), 1952, 28.55 - 0.849),
    ],
    ids=["regular", "xs", "xs with a and b", "regular without mtp"],
)
def test_counts_and_sizes_of_a_27b(qwen36, options, count, gigabytes):
    plan = plan_quantization(qwen36, options).to_json()
    assert plan["count"] == len(plan["tensors"]) == count
    assert plan["bytes"] / 1e9 == pytest.approx(gigabytes, abs=0.05)


MIXED = """
rules:
  - {match: "*.self_attn.*_proj", format: fp8}
  - {match: "*.linear_attn.in_proj_qkv", format: fp8}
  - {match: "*.linear_attn.in_proj_z", format: fp8}
  - {match: "*.linear_attn.out_proj", format: fp8}
  - {match: "*.mlp.*_proj", format: w4a16_nvfp4}
  - {match: lm_head, format: w4a16_nvfp4}
kv_cache: fp8
"""


def test_a_recipe_file_makes_nvidias_mixed_layout(qwen36, tmp_path):
    plan = plan_quantization(qwen36, QuantizeOptions(recipe_file(tmp_path, MIXED)))
    assert plan.nbytes / 1e9 == pytest.approx(21.92, abs=0.1)
    section = describe(plan.formats, [t.name for t in plan.tensors], plan.recipe.kv_cache).section
    assert section["quant_algo"] == "MIXED_PRECISION" and section["ignore"] == []
    assert section["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    layers = section["quantized_layers"]
    assert layers["lm_head"] == {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    assert layers["model.language_model.layers.3.self_attn.q_proj"] == {"quant_algo": "FP8"}
    assert not any("in_proj_a" in name or "visual" in name or name.startswith("mtp") for name in layers)
    targets = [name for group in section["config_groups"].values() for name in group["targets"]]
    assert sorted(targets) == sorted(layers)


def test_later_rules_win(tiny, tmp_path):
    listed = ('"*", format: nvfp4', '"*.layers.0.*", format: bf16', "lm_head, format: fp8")
    rules = f"rules: [{', '.join(f'{{match: {rule}}}' for rule in listed)}]"
    formats = plan_quantization(tiny, QuantizeOptions(recipe_file(tmp_path, rules))).formats
    assert formats["lm_head"] == "fp8"
    assert formats["model.language_model.layers.0.mlp.gate_proj"] == "bf16"
    assert formats["model.language_model.layers.1.mlp.gate_proj"] == "nvfp4"
    assert not any(name.startswith(("mtp", "model.visual")) or "embed" in name for name in formats)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('rules: [{match: "*.mlp.gateproj", format: nvfp4}]', "matches no module"),
        ('rules: [{match: "mtp.*", format: nvfp4}]', "always stay"),
        ('rules: [{match: "*.mlp.gate_proj", format: nvfp4}]', "one format"),
        ('rules: [{match: "*.mlp.*", format: int4}]', "nvfp4"),
        ('rules: [{match: "*.mlp.*", form: nvfp4}]', "did you mean 'format'"),
        ('rules: [{match: "*.mlp.*", format: bf16}]', "quantises nothing"),
        ("rules: []", "rules"),
        ("rule: []", "did you mean 'rules'"),
        ("- nvfp4", "mapping"),
        ("rules: [", "cannot be read"),
    ],
)
def test_bad_recipes_are_one_clear_line(tiny, tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as error:
        plan_quantization(tiny, QuantizeOptions(recipe_file(tmp_path, text)))
    assert "\n" not in str(error.value)


def test_a_bf16_rule_may_name_what_always_stays(tiny, tmp_path):
    rules = 'rules: [{match: "*.mlp.*", format: nvfp4}, {match: "mtp.*", format: bf16}]'
    assert plan_quantization(tiny, QuantizeOptions(recipe_file(tmp_path, rules))).calibrated


def test_recipe_names():
    with pytest.raises(ConfigError, match="neither regular, xs nor"):
        load_recipe("small")
    with pytest.raises(ConfigError, match="does not exist"):
        load_recipe("nowhere.yaml")
    with pytest.raises(ConfigError, match="--recipe xs"):
        load_recipe("regular", legacy_ab=True)


def test_odd_input_dimensions_name_the_tensor(tmp_path):
    shape = TinyTarget(intermediate_size=72)
    model = make_target(tmp_path / "model", shape, dtype=torch.bfloat16, tokenizer=False)
    with pytest.raises(
        CheckpointError, match=r"down_proj.weight has 72 input columns; nvfp4 needs a multiple of 16"
    ):
        plan_quantization(model, QuantizeOptions())


def test_a_mixture_of_experts_is_refused_by_name(tmp_path):
    write_folder(tmp_path, {"model_type": "qwen3_5_moe"}, {"lm_head.weight": torch.ones(2, 2)})
    with pytest.raises(UnsupportedModelError, match="qwen3_5_moe"):
        plan_quantization(tmp_path, QuantizeOptions())


def test_an_index_that_names_absent_files(tmp_path):
    model = make_target(tmp_path / "model", dtype=torch.bfloat16, shards=2, tokenizer=False)
    (model / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        plan_quantization(model, QuantizeOptions())


def test_heads_from_elsewhere(tmp_path):
    shape = TARGETS["plain"]
    model = make_target(tmp_path / "model", shape, dtype=torch.bfloat16, mtp=False, tokenizer=False)
    base = make_target(tmp_path / "base", shape, dtype=torch.bfloat16, tokenizer=False)
    other = make_target(tmp_path / "other", "three", dtype=torch.bfloat16, tokenizer=False)
    names = {t.name for t in plan_quantization(model, QuantizeOptions(mtp=str(base))).tensors}
    assert sum(name.startswith("mtp.") for name in names) == 15
    with pytest.raises(PairingError, match="needs"):
        plan_quantization(model, QuantizeOptions(mtp=str(other)))
    with pytest.raises(PairingError, match="no multi-token head"):
        plan_quantization(base, QuantizeOptions(mtp=str(model)))
    with pytest.raises(ConfigError, match="neither keep, drop"):
        plan_quantization(base, QuantizeOptions(mtp="kept"))


def test_a_tied_head_is_never_quantised(tmp_path):
    shape = TARGETS["tied"]
    weights = target_weights(shape)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    write_folder(tmp_path / "model", target_config(shape), weights)
    rules = 'rules: [{match: "*", format: w4a16_nvfp4}]'
    formats = plan_quantization(tmp_path / "model", QuantizeOptions(recipe_file(tmp_path, rules))).formats
    assert "lm_head" not in formats


def test_a_quantised_checkpoint_needs_a_word(tmp_path):
    weights = {"model.layers.0.mlp.down_proj.weight": torch.zeros(32, 32).to(torch.float8_e4m3fn)}
    write_folder(tmp_path, target_config(TARGETS["plain"]), {}, torch.float32)
    from safetensors.torch import save_file

    weights["model.layers.0.mlp.down_proj.weight_scale"] = torch.tensor(1.0)
    save_file(weights, tmp_path / "model.safetensors")
    write_json(tmp_path / "config.json", target_config(TARGETS["plain"]))
    with pytest.raises(ConfigError, match="--requantize"):
        plan_quantization(tmp_path, QuantizeOptions())

"""`inspect`: every problem of the checklist, made and found; nothing found in what we write."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.errors import CheckpointError
from paceline.quantize.inspect import inspect
from paceline.quantize.quant_config import ignored_by
from tests.quantize.folders import edit_tensors, quantize_tiny, tiny_model
from tests.tiny import drafter_for, make_drafter, write_json

LAYER = "model.language_model.layers.0."


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model", shape="three")


@pytest.fixture
def quantised(model, tmp_path):
    quantize_tiny(model, tmp_path / "quantised")
    return tmp_path / "quantised"


def codes(folder):
    return {problem.code for problem in inspect(folder).problems}


def edit_json(folder, change, file="config.json"):
    value = json.loads((folder / file).read_text())
    change(value)
    write_json(folder / file, value)


def test_a_plain_and_a_quantised_checkpoint(model, quantised):
    plain, packed = inspect(model), inspect(quantised)
    for found in (plain, packed):
        assert found.problems == [] and found.loads and found.mtp == "present" and found.drafter is None
        assert found.architecture == "Qwen3_5ForConditionalGeneration"
        json.dumps(found.to_json())
    assert [part.parameters for part in plain.parts] == [part.parameters for part in packed.parts]
    sizes = {part.name: part for part in packed.parts}
    assert set(sizes["mlp"].formats) == {"nvfp4"} and set(sizes["linear attention"].formats) == {"bf16"}
    assert sizes["mlp"].nbytes < 0.6 * sizes["mlp"].parameters
    assert packed.quantization["algorithm"] == "W4A16_NVFP4" and plain.quantization is None


def test_a_drafter(tmp_path):
    folder = make_drafter(tmp_path / "drafter", drafter_for("plain"))
    fields = inspect(folder).drafter
    assert fields["block_size"] > 1 and fields["target_layer_ids"]


SPOILT_TENSORS = {
    "scale-missing": lambda t: {n: w for n, w in t.items() if n != f"{LAYER}mlp.up_proj.weight_scale"},
    "scale-shape": lambda t: (
        t | {f"{LAYER}mlp.up_proj.weight_scale": torch.ones(2, 2).to(torch.float8_e4m3fn)}
    ),
    "global-scales-differ": lambda t: t | {f"{LAYER}mlp.up_proj.weight_scale_2": torch.tensor(0.5)},
    "vision-nested": lambda t: {
        n.replace("model.visual", "model.language_model.visual"): w for n, w in t.items()
    },
    "mtp-absent": lambda t: {n: w for n, w in t.items() if not n.startswith("mtp.")},
}


@pytest.mark.parametrize("code", SPOILT_TENSORS)
def test_spoilt_tensors(quantised, code):
    edit_tensors(quantised, SPOILT_TENSORS[code])
    assert code in codes(quantised)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_scales_that_no_kernel_takes(quantised, value):
    def spoil(tensors):
        name = f"{LAYER}mlp.down_proj.weight_scale"
        scales = tensors[name].float()
        scales[1, 1] = value
        return tensors | {name: scales.to(torch.float8_e4m3fn)}

    edit_tensors(quantised, spoil)
    (problem,) = inspect(quantised).problems
    assert problem.code == "scale-value" and "down_proj.weight_scale" in problem.message


def ignore(config):
    return config["quantization_config"]["ignore"]


SPOILT_CONFIGS = {
    "ignore-swallows": lambda c: ignore(c).append("model.language_model.layers.1"),
    "ignore-lacks": lambda c: ignore(c).remove(f"{LAYER}linear_attn*"),
    "ignore-splits": lambda c: ignore(c).append(f"{LAYER}mlp.up_proj"),
    "mtp-not-ignored": lambda c: [ignore(c).remove(entry) for entry in ("mtp*", "mtp.layers.0*")],
    "mtp-undeclared": lambda c: c["text_config"].update(mtp_num_hidden_layers=0),
    "lists-differ": lambda c: ignore(c).append("model.language_model.no_such_module"),
    "algorithm": lambda c: c["quantization_config"].update(quant_algo="NVFP4_AWQ"),
}


@pytest.mark.parametrize("code", SPOILT_CONFIGS)
def test_spoilt_configs(quantised, code):
    edit_json(quantised, SPOILT_CONFIGS[code])
    assert code in codes(quantised)


def test_an_entry_for_layer_1_swallows_layers_10_to_19():
    layer = "model.language_model.layers.{}.mlp.gate_proj"
    for entry in ("model.language_model.layers.1", "model.language_model.layers.1*", "layers.1"):
        assert [i for i in range(25) if ignored_by(layer.format(i), [entry])] == [1, *range(10, 20)]
    exact = "model.language_model.layers.1.mlp.gate_proj"
    assert [i for i in range(25) if ignored_by(layer.format(i), [exact])] == [1]


def test_no_quantization_config(quantised):
    (quantised / "hf_quant_config.json").unlink()
    edit_json(quantised, lambda c: c.pop("quantization_config"))
    assert codes(quantised) == {"no-quantization-config"} and not inspect(quantised).loads


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda c: c["quantization_config"].update(ignore=5)),
        ("config.json", lambda c: c["quantization_config"].update(ignore="lm_head")),
        ("config.json", lambda c: c.update(quantization_config="NVFP4")),
        (
            "config.json",
            lambda c: c["quantization_config"].update(quant_algo="MIXED_PRECISION", quantized_layers=[1]),
        ),
        ("hf_quant_config.json", lambda c: c.update(quantization="NVFP4")),
    ],
)
def test_a_malformed_description_is_a_problem(quantised, file, change):
    edit_json(quantised, change, file)
    assert "malformed" in codes(quantised)
    assert inspect(quantised).loads == (file != "config.json")  # which counts


def test_a_description_in_hf_quant_config_alone_is_checked(quantised):
    edit_json(quantised, lambda c: c.pop("quantization_config"))
    assert codes(quantised) == set()
    assert inspect(quantised).quantization["algorithm"] == "W4A16_NVFP4"
    edit_json(
        quantised,
        lambda c: c["quantization"]["exclude_modules"].append("model.language_model.layers.1"),
        "hf_quant_config.json",
    )
    assert "ignore-swallows" in codes(quantised)


def test_a_section_without_quantised_weights(model):
    edit_json(
        model, lambda c: c.update(quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    )
    assert "nothing-quantized" in codes(model)


def test_files_and_index(model, tmp_path):
    save_file({"stray": torch.ones(2)}, model / "stray.safetensors")
    write_json(model / "model.safetensors.index.json", {"weight_map": {}})
    assert codes(model) == {"not-in-index", "index-shadowed"} and inspect(model).loads
    sharded = tiny_model(tmp_path / "sharded", shards=2)
    (sharded / "model-00001-of-00002.safetensors").unlink()
    found = inspect(sharded)
    assert [problem.code for problem in found.problems] == ["unreadable"] and not found.loads


def test_every_problem_names_a_fix(quantised):
    edit_tensors(quantised, SPOILT_TENSORS["scale-missing"])
    assert all(problem.message and problem.fix for problem in inspect(quantised).problems)


def test_mixed_layers(model, tmp_path):
    recipe = tmp_path / "mixed.yaml"
    lines = ('"*.mlp.*", format: w4a16_nvfp4', "lm_head, format: nvfp4")
    recipe.write_text(f"rules: [{', '.join(f'{{match: {line}}}' for line in lines)}]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.quantize.export.measure_inputs", lambda *_: {"lm_head": 3.0})
        quantize_tiny(model, tmp_path / "mixed", recipe=str(recipe))
    assert inspect(tmp_path / "mixed").problems == []
    edit_json(tmp_path / "mixed", lambda c: c["quantization_config"]["quantized_layers"].pop("lm_head"))
    assert "layers-differ" in codes(tmp_path / "mixed")


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        inspect(tmp_path)

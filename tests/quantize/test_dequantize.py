"""Back to plain tensors: ours, compressed-tensors' layout, FP8; and transformers loads the result."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.errors import CheckpointError, ConfigError, UnsupportedModelError
from paceline.models import qwen3_5, qwen3_5_config
from paceline.models.checkpoint import Checkpoint
from paceline.quantize import compressed, fp8, nvfp4
from paceline.quantize.dequantize import dequantize
from paceline.quantize.inspect import inspect
from paceline.quantize.stored import PlainView, decoded, natural
from tests.quantize.folders import edit_tensors, quantize_tiny, same, tensors_of, tiny_model


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model")


@pytest.fixture
def quantised(model, tmp_path):
    quantize_tiny(model, tmp_path / "quantised")
    return tmp_path / "quantised"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_original_names_and_exact_values(model, quantised, tmp_path, dtype):
    report = dequantize(quantised, tmp_path / "plain", dtype, shard_size=60_000)
    packed, plain, original = (tensors_of(folder) for folder in (quantised, tmp_path / "plain", model))
    assert plain.keys() == original.keys() and report.files > 1
    for name, tensor in plain.items():
        if f"{name}_scale_2" not in packed:
            assert same(tensor, original[name])
            continue
        matrix = nvfp4.Nvfp4(packed[name], packed[f"{name}_scale"], packed[f"{name}_scale_2"])
        assert same(tensor, nvfp4.dequantize(matrix, getattr(torch, dtype)))
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == config["text_config"]["dtype"] == dtype
    assert inspect(tmp_path / "plain").problems == []


def test_transformers_loads_the_result(quantised, tmp_path):
    from transformers import AutoModelForCausalLM

    dequantize(quantised, tmp_path / "plain")
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    weight = loaded.get_submodule("model.layers.0.mlp.up_proj").weight
    assert same(
        weight.detach(), tensors_of(tmp_path / "plain")["model.language_model.layers.0.mlp.up_proj.weight"]
    )


def test_a_model_loads_through_the_decoding_view(quantised, tmp_path):
    checkpoint = decoded(Checkpoint.open(quantised))
    dequantize(quantised, tmp_path / "plain")
    plain = Checkpoint.open(tmp_path / "plain")
    spec = qwen3_5_config.read_spec(checkpoint)
    assert spec == qwen3_5_config.read_spec(plain)
    assert decoded(plain) is plain
    for name in plain.tensors:
        assert same(checkpoint.weight(name).to(spec.dtype), plain.weight(name)), name
    with pytest.warns(UserWarning, match="vision tensors are ignored"):
        qwen3_5.load(checkpoint, spec, torch.device("cpu"), deterministic=True)


def test_a_round_trip_through_compressed_tensors_layout(quantised, tmp_path):
    packed = tensors_of(quantised)
    modules = [name.removesuffix(".weight_scale_2") for name in packed if name.endswith("weight_scale_2")]
    renamed = dict(packed)
    for module in modules:
        parts = {
            part: renamed.pop(f"{module}.{part}") for part in ("weight", "weight_scale", "weight_scale_2")
        }
        theirs = compressed.to_compressed(parts)
        assert theirs["weight_global_scale"].shape == (1,)
        renamed |= {f"{module}.{part}": tensor for part, tensor in theirs.items()}
        back = compressed.from_compressed(theirs)
        assert same(back["weight"], parts["weight"]) and same(back["weight_scale"], parts["weight_scale"])
        torch.testing.assert_close(back["weight_scale_2"], parts["weight_scale_2"], rtol=2e-7, atol=0)
    save_file(renamed, quantised / "model.safetensors", metadata={"format": "pt"})
    view = PlainView(Checkpoint.open(quantised))
    assert set(view.quantized.values()) == {"compressed-tensors-nvfp4"} and set(view.quantized) == set(
        modules
    )
    for module in modules:
        matrix = nvfp4.Nvfp4(
            *(packed[f"{module}.{part}"] for part in ("weight", "weight_scale", "weight_scale_2"))
        )
        torch.testing.assert_close(view.read(f"{module}.weight"), nvfp4.dequantize(matrix), rtol=3e-7, atol=0)


def test_fp8_scales_of_a_tensor_and_of_rows():
    weight = torch.randn(6, 32)
    scale = fp8.global_scale(weight.abs().amax())
    stored = fp8.quantize(weight, scale)
    assert stored.float().abs().amax() == 448
    assert torch.equal(fp8.dequantize(stored, scale.view(1)), stored.float() * scale)
    rows = torch.rand(6)
    assert torch.equal(fp8.dequantize(stored, rows), stored.float() * rows[:, None])
    assert fp8.global_scale(torch.tensor(0.0)) == 1


def test_nothing_to_do(model, tmp_path):
    with pytest.raises(ConfigError, match="not quantised"):
        dequantize(model, tmp_path / "plain")


SPOILT = {
    "is missing": lambda t, n: t.pop(f"{n}.weight_scale_2"),
    r"expected F8_E4M3 \[96, 4\]": lambda t, n: t.update({f"{n}.weight_scale": torch.ones(96, 4)}),
    "NVFP4_AWQ": lambda t, n: t.update({f"{n}.pre_quant_scale": torch.ones(64)}),
    "block-wise FP8": lambda t, n: t.update({f"{n}.weight_scale_inv": torch.ones(1)}),
    "I32": lambda t, n: t.update({f"{n}.weight": torch.ones(2, 2, dtype=torch.int32)}),
}


@pytest.mark.parametrize("says", SPOILT)
def test_what_cannot_be_decoded(quantised, tmp_path, says):
    def change(tensors):
        SPOILT[says](tensors, "model.language_model.layers.0.mlp.gate_proj")
        return tensors

    edit_tensors(quantised, change)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says):
        dequantize(quantised, tmp_path / "plain")
    assert not list(tmp_path.glob("plain*"))


def test_layers_in_natural_order():
    names = ["model.layers.10.a", "model.layers.2.b", "lm_head.weight", "model.layers.2.a"]
    assert sorted(names, key=natural) == [
        "lm_head.weight",
        "model.layers.2.a",
        "model.layers.2.b",
        "model.layers.10.a",
    ]


def test_a_config_without_wrapper(tmp_path):
    model = tiny_model(tmp_path / "model", nested=False, vision=False)
    quantize_tiny(model, tmp_path / "quantised")
    dequantize(tmp_path / "quantised", tmp_path / "plain", "float32")
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["dtype"] == "float32"

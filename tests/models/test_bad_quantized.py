"""Every way in which a quantised folder can be wrong: one line of the right kind, before a weight is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import CheckpointError, ModelError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.models.registry import load_drafter, load_mtp, load_target, read_target_spec
from tests import tiny, tiny_quantized

MODULE = "model.layers.3.self_attn.q_proj"
PLAIN = "model.layers.0.linear_attn.in_proj_qkv"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny.make_target(tmp_path / "source", tokenizer=False, dtype=torch.bfloat16)


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    return tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.regular())


@pytest.fixture
def only_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when anything but a scale is read."""
    read = Checkpoint.weight

    def checked(checkpoint: Checkpoint, name: str) -> torch.Tensor:
        assert "scale" in name, f"weight {name} was read before the checks were done"
        return read(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "weight", checked)


pytestmark = pytest.mark.usefixtures("only_scales")


def refused(
    folder: Path, kind: type[ModelError], *parts: str, load: Callable[..., Any] = load_target
) -> None:
    with pytest.raises(ModelError) as caught:
        load(folder)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    for part in parts:
        assert part in message


def edit_section(folder: Path, **changes: Any) -> None:
    tiny_quantized.edit_config(folder, lambda config: config["quantization_config"].update(changes))


@pytest.mark.parametrize("part", ["weight_scale", "weight_scale_2"])
def test_a_missing_scale(folder, part):
    tiny_quantized.edit_weights(folder, lambda w: w.pop(f"{MODULE}.{part}"))
    refused(folder, CheckpointError, f"{MODULE}.{part}", "missing", load=read_target_spec)


def test_a_missing_scale_of_compressed_tensors(source, tmp_path):
    choose = tiny_quantized.regular("nvfp4-pack-quantized")
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", choose)
    tiny_quantized.edit_weights(folder, lambda w: w.pop(f"{MODULE}.weight_global_scale"))
    refused(folder, CheckpointError, f"{MODULE}.weight_global_scale", "missing", load=read_target_spec)


@pytest.mark.parametrize(
    "part,value,says",
    [
        ("weight_scale", torch.zeros(256, 8).to(torch.float8_e4m3fn), "[256, 4]"),
        ("weight_scale", torch.zeros(256, 4), "F8_E4M3"),
        ("weight_scale_2", torch.ones(2), "[] or [1]"),
        ("weight", torch.zeros(256, 20, dtype=torch.uint8), "a multiple of 16"),
        ("weight", torch.zeros(256, 32, 2, dtype=torch.uint8), "U8 [N, K/2]"),
    ],
)
def test_a_misshaped_part(folder, part, value, says):
    tiny_quantized.edit_weights(folder, lambda w: w.update({f"{MODULE}.{part}": value}))
    refused(folder, CheckpointError, f"{MODULE}.{part}", says, load=read_target_spec)


def test_a_matrix_of_another_size(folder):
    parts = {
        f"{MODULE}.weight": torch.zeros(128, 32, dtype=torch.uint8),
        f"{MODULE}.weight_scale": torch.zeros(128, 4).to(torch.float8_e4m3fn),
    }
    tiny_quantized.edit_weights(folder, lambda w: w.update(parts))
    refused(folder, CheckpointError, f"{MODULE}.weight", "[128, 64]", "[256, 64]", load=read_target_spec)


def block_scale(value: float) -> torch.Tensor:
    scales = torch.ones(256, 4)
    scales[200, 3] = value
    return scales.to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "part,value,says",
    [
        ("weight_scale", block_scale(float("nan")), "NaN"),
        ("weight_scale", block_scale(-0.5), "negative"),
        ("weight_scale_2", torch.tensor(float("nan")), "NaN or infinite"),
        ("weight_scale_2", torch.tensor(float("inf")), "NaN or infinite"),
        ("weight_scale_2", torch.tensor(-1.0), "negative"),
        ("weight_scale_2", torch.tensor(0.0), "zero"),
    ],
)
def test_a_scale_that_is_no_scale(folder, part, value, says):
    tiny_quantized.edit_weights(folder, lambda w: w.update({f"{MODULE}.{part}": value}))
    refused(folder, CheckpointError, f"{MODULE}.{part}", says)


def test_a_bad_scale_of_a_head_or_drafter(source, tmp_path, monkeypatch):
    bad = torch.tensor(float("nan"))
    folder = tiny_quantized.quantize(source, tmp_path / "a", tiny_quantized.everything())
    tiny_quantized.edit_weights(folder, lambda w: w.update({"mtp.fc.weight_scale_2": bad}))
    drafter = tiny.make_drafter(tmp_path / "drafter", tiny.drafter_for("plain"), dtype=torch.bfloat16)
    drafter = tiny_quantized.quantize(drafter, tmp_path / "b", tiny_quantized.everything())
    tiny_quantized.edit_weights(drafter, lambda w: w.update({"fc.weight_scale_2": bad}))
    monkeypatch.undo()
    target = load_target(folder)  # the head's scales are not the target's
    refused(folder, CheckpointError, "mtp.fc.weight_scale_2", load=lambda path: load_mtp(path, target))
    refused(drafter, CheckpointError, "fc.weight_scale_2", load=lambda path: load_drafter(path, target.spec))


@pytest.mark.parametrize("algorithm", ["NVFP4_AWQ", "NVFP4_SVD", "FP8_PB_WO", "MXFP8", "INT4_AWQ", None])
def test_other_algorithms_are_named(folder, algorithm):
    edit_section(folder, quant_algo=algorithm)
    refused(folder, UnsupportedModelError, f"quant_algo {algorithm}", "W4A16_NVFP4")
    tiny_quantized.edit_config(folder, lambda c: c.pop("quantization_config"))
    if algorithm:
        tiny.write_json(folder / "hf_quant_config.json", {"quantization": {"quant_algo": algorithm}})
        refused(folder, UnsupportedModelError, "hf_quant_config.json", f"quant_algo {algorithm}")


@pytest.mark.parametrize("method", ["fp8", "awq", "gptq", "bitsandbytes", None])
def test_other_methods_are_named(folder, method):
    edit_section(folder, quant_method=method)
    refused(folder, UnsupportedModelError, repr(str(method)), "modelopt", "compressed-tensors")


@pytest.mark.parametrize(
    "changes,says",
    [
        ({"format": "pack-quantized"}, "'pack-quantized'"),
        ({"format": "mixed-precision"}, "'mixed-precision'"),
        ({"config_groups": {"a": {"format": "float-quantized"}}}, "'float-quantized'"),
    ],
)
def test_other_formats_of_compressed_tensors_are_named(source, tmp_path, changes, says):
    choose = tiny_quantized.regular("nvfp4-pack-quantized")
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", choose)
    edit_section(folder, **changes)
    refused(folder, UnsupportedModelError, says, "nvfp4-pack-quantized")


def test_a_pattern_that_is_none(source, tmp_path):
    choose = tiny_quantized.regular("nvfp4-pack-quantized")
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", choose)
    edit_section(folder, ignore=["re:["])
    refused(folder, CheckpointError, "'re:['", "no pattern")
    edit_section(folder, ignore=["re:.*q_proj$"])
    refused(folder, CheckpointError, "re:.*q_proj$", "q_proj is not quantised")


@pytest.mark.parametrize(
    "where", [{"group_size": 32}, {"config_groups": {"g": {"weights": {"group_size": 32}}}}]
)
def test_other_group_sizes(folder, where):
    edit_section(folder, **where)
    refused(folder, UnsupportedModelError, "group_size is 32")


@pytest.mark.parametrize(
    "name,kind",
    [
        (f"{MODULE}.pre_quant_scale", "NVFP4_AWQ"),
        (f"{MODULE}.weight_quantizer._svdquant_lora_a", "NVFP4_SVD"),
        (f"{MODULE}.weight_scale_inv", "block-wise FP8"),
    ],
)
def test_tensors_of_other_kinds_are_named(folder, name, kind):
    tiny_quantized.edit_weights(folder, lambda w: w.update({name: torch.ones(1)}))
    refused(folder, UnsupportedModelError, name, kind)


@pytest.mark.parametrize("entry", [MODULE, "model.layers.3.self_attn*", "model.language_model.layers.3.*"])
def test_an_excluded_module_that_is_packed(folder, entry):
    edit_section(folder, ignore=[entry])
    refused(folder, CheckpointError, entry, "model.layers.3.", "not quantised")


def test_an_entry_is_no_substring(folder):
    """Other loaders let "layers.3" swallow layers 30 to 39; a name is a name here."""
    edit_section(folder, ignore=["model.layers.3", "q_proj"])
    read_target_spec(folder)


def test_a_module_stored_otherwise_than_said(source, tmp_path):
    folder = tiny_quantized.quantize(source, tmp_path / "a", tiny_quantized.mixed)
    tiny_quantized.edit_config(
        folder, lambda c: c["quantization_config"]["quantized_layers"][PLAIN].update(quant_algo="NVFP4")
    )
    refused(folder, CheckpointError, PLAIN, "nvfp4", "fp8")
    tiny_quantized.edit_config(folder, lambda c: c["quantization_config"]["quantized_layers"].pop(PLAIN))
    refused(folder, CheckpointError, PLAIN, "not quantised")
    tiny_quantized.edit_config(
        folder,
        lambda c: c["quantization_config"]["quantized_layers"].update({PLAIN: {"quant_algo": "MXFP8"}}),
    )
    refused(folder, UnsupportedModelError, PLAIN, "MXFP8")
    edit_section(folder, quantized_layers=["a"])
    refused(folder, CheckpointError, "quantized_layers")


def test_packed_tensors_that_nobody_declares(folder):
    tiny_quantized.edit_config(folder, lambda c: c.pop("quantization_config"))
    refused(folder, CheckpointError, "hf_quant_config.json", "--quantization modelopt")


def test_a_declaration_without_quantised_tensors(source):
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    tiny_quantized.edit_config(source, lambda c: c.update(quantization_config=section))
    refused(source, CheckpointError, "NVFP4", "no weight is quantised")


@pytest.mark.parametrize("section", [3, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [3]}])
def test_malformed_descriptions(folder, section):
    tiny_quantized.edit_config(folder, lambda c: c.update(quantization_config=section))
    refused(folder, CheckpointError, "config.json")


def test_a_malformed_separate_file(folder):
    tiny_quantized.edit_config(folder, lambda c: c.pop("quantization_config"))
    tiny.write_json(folder / "hf_quant_config.json", {"quantization": []})
    refused(folder, CheckpointError, "hf_quant_config.json")


def test_a_scale_without_its_matrix_is_surplus(folder):
    tiny_quantized.edit_weights(folder, lambda w: w.update({f"{PLAIN}.weight_scale_2": torch.ones(())}))
    refused(folder, CheckpointError, "surplus", f"{PLAIN}.weight_scale_2")

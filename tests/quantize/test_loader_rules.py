"""What vLLM 0.33 asks of a modelopt checkpoint, rule by rule, for every recipe (facts from its source).

The rules are written here on their own, after its loader, not with the functions that make the files.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import pytest
import torch

from paceline.quantize import export
from paceline.quantize.plan import QuantizeOptions
from paceline.quantize.samples import Calibration
from tests.quantize.folders import tensors_of, tiny_model
from tests.tiny import TinyTarget

ACCEPTED = {"FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"}
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
MIXED = 'rules: [{match: "*.self_attn.*", format: fp8}, {match: "*.mlp.*", format: nvfp4}]'
RECIPES = {
    "regular": {"recipe": "regular"},
    "xs": {"recipe": "xs"},
    "xs, a and b too": {"recipe": "xs", "legacy_ab": True},
    "weights only": {"recipe": 'rules: [{match: "*.mlp.*", format: w4a16_nvfp4}]'},
    "mixed": {"recipe": MIXED},
}


@pytest.fixture(scope="module", params=RECIPES)
def exported(request, tmp_path_factory):
    """Tensors, quantization_config and hf_quant_config of one export of 12 layers."""
    folder = tmp_path_factory.mktemp("rules")
    settings = dict(RECIPES[request.param])
    if settings["recipe"].startswith("rules"):
        (folder / "recipe.yaml").write_text(settings["recipe"])
        settings["recipe"] = str(folder / "recipe.yaml")
    model = tiny_model(folder / "model", shape=TinyTarget(num_hidden_layers=12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "measure_inputs", lambda _, __, modules, *rest: dict.fromkeys(modules, 5.0))
        export.quantize(model, folder / "out", QuantizeOptions(**settings), Calibration())
    config = json.loads((folder / "out" / "config.json").read_text())
    separate = json.loads((folder / "out" / "hf_quant_config.json").read_text())
    return tensors_of(folder / "out"), config["quantization_config"], separate


def renamed(name: str) -> str:
    """vLLM's names of a wrapper's modules."""
    for old, new in (("model.language_model.", "language_model.model."), ("model.visual.", "visual.")):
        if name.startswith(old):
            return new + name.removeprefix(old)
    return f"language_model.{name}" if name.startswith("lm_head") else name


def entries(section) -> list[str]:
    """The list as vLLM matches it: a trailing star becomes the name and everything below it."""
    split = []
    for entry in section["ignore"]:
        split += [entry.removesuffix("*"), entry.removesuffix("*") + ".*"] if entry.endswith("*") else [entry]
    return [renamed(entry) for entry in split]


def ignored(name: str, listed: list[str]) -> bool:
    """Exact, else substring, also without a leading `language_model.`, else wildcard."""
    short = name.removeprefix("language_model.")
    return any(
        name == entry or entry in name or entry in short or fnmatchcase(name, entry) for entry in listed
    )


def linears(tensors) -> dict[str, bool]:
    """Every linear module that the text model and the head build, and whether its weight is packed."""
    return {
        name.removesuffix(".weight"): weight.dtype in (torch.uint8, torch.float8_e4m3fn)
        for name, weight in tensors.items()
        if name.endswith(".weight") and weight.dim() == 2 and "embed" not in name and "visual" not in name
    }


def test_algorithm_and_required_keys(exported):
    _, section, separate = exported
    assert section["quant_method"].startswith("modelopt") and section["quant_algo"] in ACCEPTED
    nested = separate["quantization"]
    assert nested["quant_algo"] == section["quant_algo"] and "kv_cache_quant_algo" in nested
    if section["quant_algo"] == "MIXED_PRECISION":
        assert section["quantized_layers"] == nested["quantized_layers"]
    else:
        assert nested["group_size"] == 16 and nested["exclude_modules"] == section["ignore"]


def test_each_module_is_packed_or_ignored_and_never_both(exported):
    tensors, section, _ = exported
    for module, packed in linears(tensors).items():
        if section["quant_algo"] == "MIXED_PRECISION":
            assert packed == (module in section["quantized_layers"]), module
        else:
            assert packed != ignored(renamed(module), entries(section)), module


def test_parts_of_a_fused_projection_agree_and_share_scales(exported):
    tensors, _, _ = exported
    packed = linears(tensors)
    for parts in FUSED.values():
        for module in (m for m in packed if m.rpartition(".")[2] == parts[0]):
            names = [f"{module.rpartition('.')[0]}.{part}" for part in parts]
            assert len({packed[name] for name in names}) == 1
            for scale in ("weight_scale_2", "input_scale"):
                found = {tensors[f"{name}.{scale}"].item() for name in names if f"{name}.{scale}" in tensors}
                assert len(found) <= 1


def test_shapes_and_dtypes(exported):
    tensors, section, _ = exported
    for module in (module for module, packed in linears(tensors).items() if packed):
        weight, scale = tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"]
        if weight.dtype == torch.uint8:
            assert scale.dtype == torch.float8_e4m3fn and scale.shape == (
                weight.shape[0],
                weight.shape[1] // 8,
            )
            assert weight.shape[1] % 8 == 0 and (scale.float() > 0).all()
            assert tensors[f"{module}.weight_scale_2"].shape == ()
        else:
            assert scale.dtype == torch.float32 and scale.shape == ()
        has_input = f"{module}.input_scale" in tensors
        assert has_input == (section["quant_algo"] != "W4A16_NVFP4")


def test_the_head_stays_plain_and_is_ignored(exported):
    tensors, section, _ = exported
    head = [name for name in tensors if name.startswith("mtp.")]
    assert len(head) == 15 and all(tensors[name].dtype == torch.bfloat16 for name in head)
    if section["quant_algo"] != "MIXED_PRECISION":
        assert ignored("mtp.fc", entries(section)) and ignored(
            "mtp.layers.0.self_attn.qkv_proj", entries(section)
        )

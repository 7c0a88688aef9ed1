"""Quantised checkpoints: the model is the one whose weights were decoded, bit for bit, however it is held."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from paceline.errors import ConfigError
from paceline.kernels.nvfp4 import packed_product
from paceline.models.dflash_block import BlockRequest
from paceline.models.registry import (
    load_drafter,
    load_mtp,
    load_target,
    read_drafter_spec,
    read_mtp_spec,
    read_target_spec,
)
from tests import tiny, tiny_quantized
from tests.models.harness import Runner

BF16 = torch.bfloat16
IDS = [5, 9, 77, 3, 120, 64, 31, 8]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("source") / "target", tokenizer=False, dtype=BF16)


def logits(folder: Path, **options: object) -> torch.Tensor:
    model = load_target(folder, deterministic=True, **options)  # type: ignore[arg-type]
    return model.logits(Runner(model).prefill(IDS).hidden)


CHOICES = {
    "regular": tiny_quantized.regular(),
    "xs": tiny_quantized.xs(),
    "w4a16": tiny_quantized.xs("W4A16_NVFP4"),
    "everything": tiny_quantized.everything(),
    "mixed": tiny_quantized.mixed,
    "fp8": tiny_quantized.xs("FP8"),
    "fp8 a row": tiny_quantized.xs("FP8_PER_CHANNEL_PER_TOKEN"),
    "compressed-tensors": tiny_quantized.xs("nvfp4-pack-quantized"),
}


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES.keys())
def test_logits_are_those_of_the_decoded_checkpoint(source, tmp_path, choose):
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", choose)
    expected = logits(tiny_quantized.dequantized(folder, tmp_path / "plain"))
    assert torch.equal(logits(folder), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # FP8 alone leaves nothing to pack
        assert torch.equal(logits(folder, keep_packed=True), expected)
    assert not torch.equal(logits(source), expected)


def test_float32_decodes_without_rounding(tmp_path):
    source = tiny.make_target(tmp_path / "source", tokenizer=False)
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.xs())
    plain = tiny_quantized.dequantized(folder, tmp_path / "plain", torch.float32)
    assert torch.equal(logits(folder), logits(plain))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert torch.equal(logits(folder, keep_packed=True), logits(plain))


def test_nested_names_and_a_vision_tower(tmp_path):
    source = tiny.make_target(
        tmp_path / "source", "three", tokenizer=False, dtype=BF16, nested=True, vision=True
    )
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.xs())
    # other spellings of the same modules
    tiny_quantized.edit_config(
        folder,
        lambda c: c["quantization_config"].update(
            ignore=["language_model.model.layers.0.linear_attn.in_proj_a", "model.visual*", "mtp*", "lm_head"]
        ),
    )
    plain = tiny_quantized.dequantized(folder, tmp_path / "plain")
    with pytest.warns(UserWarning, match="vision"):
        assert torch.equal(logits(folder), logits(plain))


def test_config_json_wins_over_the_separate_file(source, tmp_path):
    separate = tiny_quantized.quantize(source, tmp_path / "a", tiny_quantized.regular(), separate=True)
    assert read_target_spec(separate).quantization == "NVFP4"
    both = tiny_quantized.quantize(source, tmp_path / "b", tiny_quantized.regular())
    tiny.write_json(both / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4_AWQ"}})
    assert read_target_spec(both).quantization == "NVFP4"
    assert torch.equal(logits(separate), logits(both))


def test_mixed_layers_may_stand_in_the_separate_file(source, tmp_path):
    folder = tiny_quantized.quantize(source, tmp_path / "a", tiny_quantized.mixed, separate=True)
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    tiny_quantized.edit_config(folder, lambda c: c.update(quantization_config=section))
    assert read_target_spec(folder).quantization == "MIXED_PRECISION"


@pytest.mark.parametrize(
    "choose,choice,says",
    [
        (None, "modelopt", "not quantised"),
        (None, "compressed-tensors", "not quantised"),
        ("NVFP4", "none", "quantised by modelopt"),
        ("NVFP4", "compressed-tensors", "quantised by modelopt"),
        ("nvfp4-pack-quantized", "modelopt", "quantised by compressed-tensors"),
        ("nvfp4-pack-quantized", "none", "quantised by compressed-tensors"),
    ],
)
def test_a_wrong_choice_is_refused(source, tmp_path, choose, choice, says):
    folder = source
    if choose:
        folder = tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.regular(choose))
    with pytest.raises(ConfigError) as caught:
        load_target(folder, quantization=choice)
    assert says in str(caught.value) and caught.value.key == "quantization"


def test_a_right_choice_is_taken(source, tmp_path):
    assert read_target_spec(source, quantization="none").quantization is None
    folder = tiny_quantized.quantize(source, tmp_path / "a", tiny_quantized.regular())
    for choice in ("modelopt", "modelopt_fp4", "auto"):
        assert read_target_spec(folder, quantization=choice).quantization == "NVFP4"
    tiny_quantized.edit_config(folder, lambda c: c.pop("quantization_config"))
    assert read_target_spec(folder, quantization="modelopt").quantization == "NVFP4"  # vouched for


def test_a_quantised_head(source, tmp_path):
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.everything())
    plain = tiny_quantized.dequantized(folder, tmp_path / "plain")
    outputs = []
    for path, packed in ((plain, False), (folder, False), (folder, True)):
        model = load_target(path, keep_packed=packed, deterministic=True)
        read_mtp_spec(path, model.spec)
        head = load_mtp(path, model, keep_packed=packed, deterministic=True)
        outputs.append(head_output(head))
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def head_output(head) -> torch.Tensor:
    """One row of the head, at position 1."""
    spec = head.spec
    kv = (torch.zeros(2, 16, spec.kv_heads, spec.head_dim, dtype=BF16),) * 2
    kv = (kv[0], kv[1].clone())
    hidden = torch.randn(1, spec.hidden_size, generator=torch.Generator().manual_seed(0)).to(BF16)
    one, zero = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return head.forward(one * 7, hidden, one, zero, torch.tensor([[1]]), one * 17, kv, 16)


def test_a_quantised_drafter(source, tmp_path):
    target = load_target(source, deterministic=True)
    drafter = tiny.make_drafter(tmp_path / "drafter", tiny.drafter_for("plain"), dtype=BF16)
    folder = tiny_quantized.quantize(drafter, tmp_path / "quantised", tiny_quantized.everything())
    plain = tiny_quantized.dequantized(folder, tmp_path / "plain")
    read_drafter_spec(folder, target.spec)
    drafts = []
    for path, packed in ((plain, False), (folder, False), (folder, True)):
        loaded = load_drafter(path, target.spec, deterministic=True, keep_packed=packed)
        shape = (2, 16, loaded.spec.kv_heads, loaded.spec.head_dim)
        kv = [
            (torch.zeros(shape, dtype=BF16), torch.zeros(shape, dtype=BF16))
            for _ in range(loaded.spec.num_layers)
        ]
        features = torch.randn(3, 3 * 64, generator=torch.Generator().manual_seed(0)).to(BF16)
        loaded.append_context(features, torch.arange(3), 16 + torch.arange(3), kv)
        block = BlockRequest(torch.tensor([5]), torch.tensor([3]), torch.tensor([[1]]), 4, 4, 16)
        drafts.append(loaded.draft(block, kv, target))
    assert torch.equal(drafts[0], drafts[1]) and torch.equal(drafts[0], drafts[2])


def test_a_quantised_cache_is_said_to_be_kept_whole(source, tmp_path):
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.regular())
    tiny_quantized.edit_config(
        folder, lambda c: c["quantization_config"].update(kv_cache_scheme={"num_bits": 8, "type": "float"})
    )
    scales = {f"model.layers.3.self_attn.{at}": torch.tensor(1.0) for at in ("k_scale", "v_proj.v_scale")}
    tiny_quantized.edit_weights(folder, lambda w: w.update(scales))
    with pytest.warns(UserWarning, match="FP8"):
        load_target(folder)


def test_packed_weights_stay_packed(source, tmp_path):
    if not packed_product(torch.device("cpu"), BF16):
        pytest.skip("no packed product here")
    folder = tiny_quantized.quantize(source, tmp_path / "quantised", tiny_quantized.everything())
    assert load_target(folder, keep_packed=True)._head.kind.endswith("-nvfp4")
    assert "nvfp4" not in load_target(folder)._head.kind

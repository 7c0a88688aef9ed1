"""What a folder says, in every published layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.models.dflash_config import default_taps
from paceline.models.registry import load_target, read_drafter_spec, read_mtp_spec, read_target_spec
from tests import tiny
from tests.models.harness import Runner

IDS = [3, 50, 7, 99, 12]
FULL, SLIDING = "full_attention", "sliding_attention"


def hidden(folder: Path, **options: Any) -> torch.Tensor:
    return Runner(load_target(folder, **options)).prefill(IDS).hidden


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_layouts_load_the_same_model(tmp_path: Path, nested: bool, shards: int) -> None:
    reference = hidden(tiny.make_target(tmp_path / "reference", tokenizer=False))
    other = tiny.make_target(tmp_path / "other", nested=nested, shards=shards, tokenizer=False)
    assert torch.equal(hidden(other), reference)


def test_dtypes(tmp_path: Path) -> None:
    half = tiny.make_target(tmp_path / "half", dtype=torch.bfloat16, tokenizer=False)
    assert read_target_spec(half).dtype == torch.bfloat16
    assert read_target_spec(half, "float32").dtype == torch.float32
    assert hidden(half, dtype="float32").dtype == torch.float32
    full = tiny.make_target(tmp_path / "full", tokenizer=False)
    assert hidden(full, dtype="bfloat16").dtype == torch.bfloat16
    # without a dtype in the config the stored one counts
    config = json.loads((half / "config.json").read_text())
    del config["dtype"]
    tiny.write_json(half / "config.json", config)
    assert read_target_spec(half).dtype == torch.bfloat16


def test_vision_tensors_are_left_out_with_one_notice(tmp_path: Path) -> None:
    folder = tiny.make_target(tmp_path, nested=True, vision=True, tokenizer=False)
    with pytest.warns(UserWarning, match="1 vision tensors are ignored") as caught:
        load_target(folder)
    assert len(caught) == 1


def test_end_ids_of_both_files_are_joined(tmp_path: Path) -> None:
    folder = tiny.make_target(tmp_path, nested=True, tokenizer=False)
    assert read_target_spec(folder).eos_ids == (tiny.EOS, tiny.IM_END)
    config = json.loads((folder / "config.json").read_text())
    tiny.write_json(folder / "config.json", config | {"eos_token_id": [9]})
    assert read_target_spec(folder).eos_ids == (tiny.EOS, tiny.IM_END, 9)
    (folder / "generation_config.json").unlink()
    assert read_target_spec(folder).eos_ids == (tiny.EOS, 9)


def test_numbers(tmp_path: Path) -> None:
    spec = read_target_spec(tiny.make_target(tmp_path, "three", tokenizer=False))
    assert spec.full_layers == (2, 5) and spec.linear_layers == (0, 1, 3, 4)
    assert spec.conv_dim == spec.delta_shape.conv_dim == 2 * 2 * 16 + 6 * 32
    assert spec.rope.rotary_dim == 8 and spec.rope.theta == 1e7
    assert spec.mtp_layers == 1
    assert not spec.tied


def test_a_model_without_a_head(tmp_path: Path) -> None:
    assert read_target_spec(tiny.make_target(tmp_path, mtp=False, tokenizer=False)).mtp_layers == 0


def test_head_shares_the_targets_geometry(tmp_path: Path) -> None:
    folder = tiny.make_target(tmp_path, "three", tokenizer=False)
    target = read_target_spec(folder)
    head = read_mtp_spec(folder, target)
    assert (head.kv_heads, head.head_dim, head.rope) == (target.kv_heads, target.head_dim, target.rope)


@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling", "top"])
def test_rotary_fields_in_every_place(tmp_path: Path, where: str) -> None:
    folder = tiny.make_target(tmp_path, tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    rope = {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": rope["rope_type"]}
    config |= rope if where == "top" else {where: rope}
    tiny.write_json(folder / "config.json", config)
    spec = read_target_spec(folder)
    assert (spec.rope.theta, spec.rope.rotary_dim) == (5e5, 16)


@pytest.mark.parametrize("in_dflash_config", [False, True])
@pytest.mark.parametrize("rope_nested", [False, True])
def test_drafter_fields_in_either_place(tmp_path: Path, in_dflash_config: bool, rope_nested: bool) -> None:
    target = read_target_spec(tiny.make_target(tmp_path / "target", tokenizer=False))
    folder = tiny.make_drafter(
        tmp_path / "drafter", in_dflash_config=in_dflash_config, rope_nested=rope_nested
    )
    spec = read_drafter_spec(folder, target)
    assert (spec.block_size, spec.rope.theta, spec.rope.rotary_dim) == (8, 1e4, 16)
    assert spec.target_layer_ids == (0, 2, 3) and spec.mask_token_id == tiny.VOCAB - 1
    assert spec.max_speculative_tokens == 7
    assert spec.dtype == target.dtype


CAUSALITY: list[tuple[dict[str, Any], tuple[bool, bool]]] = [
    ({}, (True, False)),  # causal only for sliding layers
    ({"nested": {"causal": False}}, (False, False)),
    ({"nested": {"causal": True}}, (True, True)),
    ({"extra": {"is_causal": False}, "nested": {"causal": True}}, (False, False)),  # is_causal wins
    ({"extra": {"is_causal": True}, "nested": {"causal": False}}, (True, True)),
    ({"extra": {"is_causal": None}, "nested": {"causal": None}}, (True, False)),
]


@pytest.mark.parametrize(("fields", "causal"), CAUSALITY)
def test_causality(tmp_path: Path, fields: dict[str, Any], causal: tuple[bool, bool]) -> None:
    target = read_target_spec(tiny.make_target(tmp_path / "target", tokenizer=False))
    shape = tiny.drafter_for("plain", layer_types=(SLIDING, FULL), sliding_window=64, **fields)
    spec = read_drafter_spec(tiny.make_drafter(tmp_path / "drafter", shape), target)
    assert spec.causal == causal
    assert spec.windows == (64, None)


def test_one_window_for_every_layer(tmp_path: Path) -> None:
    target = read_target_spec(tiny.make_target(tmp_path / "target", tokenizer=False))
    shape = tiny.drafter_for("plain", nested={"use_swa": True, "swa_window_size": 32})
    spec = read_drafter_spec(tiny.make_drafter(tmp_path / "drafter", shape), target)
    assert spec.windows == (32, 32) and spec.causal == (False, False)


def test_no_layer_types_means_full_attention(tmp_path: Path) -> None:
    target = read_target_spec(tiny.make_target(tmp_path / "target", tokenizer=False))
    folder = tiny.make_drafter(tmp_path / "drafter")
    config = json.loads((folder / "config.json").read_text())
    del config["layer_types"]
    tiny.write_json(folder / "config.json", config)
    spec = read_drafter_spec(folder, target)
    assert spec.windows == (None, None) and spec.causal == (False, False)


@pytest.mark.parametrize(
    ("target_layers", "drafter_layers", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 5, (1, 10, 19, 28, 37)),
        (32, 5, (1, 8, 15, 22, 29)),
        (36, 1, (18,)),
    ],
)
def test_default_taps_are_the_published_ones(
    target_layers: int, drafter_layers: int, taps: tuple[int, ...]
) -> None:
    assert default_taps(target_layers, drafter_layers) == taps

"""Llama, Qwen2 and Qwen3 against transformers' own classes, on tiny random models in float32."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import pytest
import torch

from paceline.models.base import TargetModel
from paceline.models.registry import load_target
from tests import tiny
from tests.models.harness import Runner
from tests.tiny_dense import DENSE, make_dense

TOLERANCE = 1e-4
LENGTH = 160


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every tiny shape, written once."""
    root = tmp_path_factory.mktemp("dense")
    return {name: make_dense(root / name, name, tokenizer=False) for name in DENSE}


@cache
def oracle(folder: Path) -> tuple[list[int], torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
    """Ids, and transformers' logits, per-layer hidden states and last layer's raw output, in one pass."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, model.config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(5))
    raw: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda _m, _i, out: raw.append(out))
    with torch.no_grad():
        out = model(ids[None], output_hidden_states=True)
    return ids.tolist(), out.logits[0], tuple(h[0] for h in out.hidden_states), raw[0][0]


@cache
def target(folder: Path, deterministic: bool = False, dtype: str = "auto") -> TargetModel:
    return load_target(folder, dtype, deterministic=deterministic)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max().item() < TOLERANCE


SHAPES = pytest.mark.parametrize("name", list(DENSE))


@SHAPES
def test_chunked_prefill_and_windows(folders: dict[str, Path], name: str) -> None:
    ids, logits, states, _ = oracle(folders[name])
    model = target(folders[name])
    runner = Runner(model)
    got = [runner.prefill(ids[a:b]).hidden for a, b in ((0, 64), (64, 101))]
    got += [runner.window([ids[a : a + 16]], [16]).hidden for a in (101, 117)]
    got += [runner.window([[token]], [1]).hidden for token in ids[133:]]
    hidden = torch.cat(got)
    assert_close(hidden, states[-1])
    assert_close(model.logits(hidden), logits)


@SHAPES
def test_taps_are_the_outputs_of_their_layers(folders: dict[str, Path], name: str) -> None:
    ids, _, states, last = oracle(folders[name])
    features = Runner(target(folders[name])).prefill(ids, taps=(2, 0)).features
    assert features is not None
    assert_close(features, torch.cat([last, states[1]], dim=1))
    assert Runner(target(folders[name])).prefill(ids[:3]).features is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_rejected_windows_and_neighbours_leave_no_trace(
    folders: dict[str, Path], name: str, dtype: str
) -> None:
    """Windows with wrong drafts, beside another sequence, give the bits of decoding alone and plainly."""
    ids, _, _, _ = oracle(folders[name])
    model = target(folders[name], deterministic=True, dtype=dtype)
    plain, drafting = Runner(model), Runner(model, sequences=2)
    plain.prefill(ids[:64]), drafting.prefill(ids[:64], 0), drafting.prefill(ids[30:51], 1)
    expected = torch.cat([plain.window([[token]], [1]).hidden for token in ids[64:84]])
    got: list[torch.Tensor] = []
    for at, accepted in zip((64, 65, 68, 69, 74, 76), (1, 3, 1, 5, 2, 8), strict=True):
        wrong = [(token + 1) % 100 for token in ids[at + accepted : at + 8]]
        windows = [[*ids[at : at + accepted], *wrong], ids[at : at + 3]]
        got.append(drafting.window(windows, [accepted, 3]).hidden[:accepted])
    assert torch.equal(torch.cat(got), expected)


def test_rows_of_several_sequences(folders: dict[str, Path]) -> None:
    ids, _, _, _ = oracle(folders["qwen2"])
    model = target(folders["qwen2"], deterministic=True, dtype="bfloat16")
    sizes = [1, 8, 4]
    together = Runner(model, sequences=3)
    for i in range(3):
        together.prefill(ids[i : 20 + 9 * i], i)
    windows = [ids[100 + i : 100 + i + size] for i, size in enumerate(sizes)]
    rows = together.window(windows, sizes).hidden
    bounds = [0, *itertools.accumulate(sizes)]
    for i, window in enumerate(windows):
        alone = Runner(model)
        alone.prefill(ids[i : 20 + 9 * i])
        assert torch.equal(rows[bounds[i] : bounds[i + 1]], alone.window([window], [sizes[i]]).hidden)


def test_yarn(tmp_path: Path) -> None:
    """Qwen3's context extended by YaRN, as its model card advises for long inputs."""
    folder = make_dense(tmp_path, "qwen3", tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    tiny.write_json(folder / "config.json", config)
    ids, logits, _, _ = oracle(folder)
    model = load_target(folder)
    assert_close(model.logits(Runner(model).prefill(ids).hidden), logits)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_bfloat16_agrees_with_transformers_up_to_rounding(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_dense(tmp_path, name, dtype=torch.bfloat16, tokenizer=False)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, tiny.VOCAB, (40,))
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0].float()
    model = load_target(folder)
    assert model.spec.dtype == torch.bfloat16
    got = model.logits(Runner(model).prefill(ids.tolist()).hidden)
    assert (got - expected).abs().max().item() < 0.1 * expected.std().item()

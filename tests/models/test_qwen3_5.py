"""The target against transformers' own class, on tiny random models in float32."""

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

TOLERANCE = 2e-4
LENGTH = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every tiny shape, written once."""
    root = tmp_path_factory.mktemp("targets")
    return {name: tiny.make_target(root / name, name, tokenizer=False) for name in tiny.TARGETS}


@cache
def oracle(folder: Path) -> tuple[list[int], torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
    """Ids, and transformers' logits, per-layer hidden states and last layer's raw output, in one pass."""
    from transformers import Qwen3_5ForCausalLM

    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
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


SHAPES = pytest.mark.parametrize("name", list(tiny.TARGETS))


@SHAPES
def test_one_pass(folders: dict[str, Path], name: str) -> None:
    ids, logits, _, _ = oracle(folders[name])
    model = target(folders[name])
    assert_close(model.logits(Runner(model).prefill(ids).hidden), logits)


@SHAPES
def test_chunked_prefill(folders: dict[str, Path], name: str) -> None:
    ids, logits, _, _ = oracle(folders[name])
    model = target(folders[name])
    runner = Runner(model)
    chunks = [(0, 64), (64, 101), (101, 200)]  # 64 + 37 + 99
    got = torch.cat([runner.prefill(ids[a:b]).hidden for a, b in chunks])
    assert_close(model.logits(got), logits)


@SHAPES
def test_token_by_token(folders: dict[str, Path], name: str) -> None:
    ids, logits, _, _ = oracle(folders[name])
    model = target(folders[name])
    runner = Runner(model)
    got = [runner.prefill(ids[:1]).hidden]
    got += [runner.window([[token]], [1]).hidden for token in ids[1:48]]
    assert_close(model.logits(torch.cat(got)), logits[:48])


@SHAPES
def test_window_of_16(folders: dict[str, Path], name: str) -> None:
    ids, logits, _, _ = oracle(folders[name])
    model = target(folders[name])
    runner = Runner(model)
    runner.prefill(ids[:101])
    first = runner.window([ids[101:117]], [16]).hidden
    second = runner.window([ids[117:133]], [16]).hidden
    assert_close(model.logits(torch.cat([first, second])), logits[101:133])


@SHAPES
def test_taps_are_the_outputs_of_their_layers(folders: dict[str, Path], name: str) -> None:
    ids, _, states, last = oracle(folders[name])
    model = target(folders[name])
    layers = model.spec.num_layers
    taps = (layers - 1, 0, 1)  # in the order asked for, whatever it is
    features = Runner(model).prefill(ids, taps=taps).features
    assert features is not None
    # transformers stores the normed output as its last hidden state; the raw one comes from a hook
    expected = [last, states[1], states[2]]
    assert_close(features, torch.cat(expected, dim=1))


def test_hidden_is_after_the_final_norm(folders: dict[str, Path]) -> None:
    ids, _, states, _ = oracle(folders["plain"])
    assert_close(Runner(target(folders["plain"])).prefill(ids).hidden, states[-1])


def test_no_taps_no_features(folders: dict[str, Path]) -> None:
    assert Runner(target(folders["plain"])).prefill([1, 2, 3]).features is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["plain", "three"])
def test_rejected_windows_leave_no_trace(folders: dict[str, Path], name: str, dtype: str) -> None:
    """Decode after rollbacks equals, bit for bit, decode that never drafted."""
    ids, _, _, _ = oracle(folders[name])
    model = target(folders[name], deterministic=True, dtype=dtype)
    plain, drafting = Runner(model), Runner(model)
    plain.prefill(ids[:64]), drafting.prefill(ids[:64])
    expected = torch.cat([plain.window([[token]], [1]).hidden for token in ids[64:84]])
    got: list[torch.Tensor] = []
    at = 64
    for accepted in (1, 3, 1, 5, 2, 8):
        wrong = [(token + 1) % 100 for token in ids[at + accepted : at + 8]]
        out = drafting.window([[*ids[at : at + accepted], *wrong]], [accepted]).hidden
        got.append(out[:accepted])
        at += accepted
    assert torch.equal(torch.cat(got), expected)
    plain.settle(0), drafting.settle(0)
    for a, b in zip(plain.cache.delta, drafting.cache.delta, strict=True):
        assert torch.equal(a.state[1], b.state[1])
        assert torch.equal(a.conv_rows[1, :3], b.conv_rows[1, :3])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sequence_does_not_see_its_neighbours(folders: dict[str, Path], dtype: str) -> None:
    """Windows of several lengths side by side give the bits that each gives alone."""
    ids, _, _, _ = oracle(folders["three"])
    model = target(folders["three"], deterministic=True, dtype=dtype)
    prompts, sizes = [ids[:30], ids[40:107], ids[3:20]], [1, 8, 4]
    together = Runner(model, sequences=3)
    for i, prompt in enumerate(prompts):
        together.prefill(prompt, i)
    windows = [ids[100 + i : 100 + i + size] for i, size in enumerate(sizes)]
    steps = [together.window(windows, sizes).hidden for _ in range(2)]
    bounds = [0, *itertools.accumulate(sizes)]
    for i, (prompt, window) in enumerate(zip(prompts, windows, strict=True)):
        alone = Runner(model)
        alone.prefill(prompt)
        for step in steps:
            expected = alone.window([window], [len(window)]).hidden
            assert torch.equal(step[bounds[i] : bounds[i + 1]], expected)


def test_yarn(tmp_path: Path) -> None:
    """A context extended by YaRN, as model cards advise for long inputs."""
    folder = tiny.make_target(tmp_path, "plain", tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4,
    }  # fmt: skip
    tiny.write_json(folder / "config.json", config)
    ids, logits, _, _ = oracle(folder)
    model = load_target(folder)
    assert_close(model.logits(Runner(model).prefill(ids).hidden), logits)


def test_bfloat16_agrees_with_transformers_up_to_rounding(tmp_path: Path) -> None:
    from transformers import Qwen3_5ForCausalLM

    folder = tiny.make_target(tmp_path, "plain", dtype=torch.bfloat16, tokenizer=False)
    theirs = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, tiny.VOCAB, (40,))
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0].float()
    model = load_target(folder)
    assert model.spec.dtype == torch.bfloat16
    got = model.logits(Runner(model).prefill(ids.tolist()).hidden)
    assert (got - expected).abs().max().item() < 0.1 * expected.std().item()

"""The engine over quantised checkpoints: the text depends neither on drafts nor on how weights are held."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig, ModelConfig
from paceline.engine.budget import forecast
from paceline.engine.resolve import resolve
from paceline.errors import ConfigError
from paceline.kernels.nvfp4 import packed_product
from paceline.quantize.dequantize import dequantize
from tests import tiny, tiny_quantized
from tests.quantize.folders import quantize_tiny, weights_only

PROMPTS = [[5, 9, 77, 3, 120, 64, 31, 8], [1, 2, 3, 1, 2, 3, 1, 2]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.9, max_tokens=24, ignore_eos=True, seed=7),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target with its multi-token head and a drafter, all in NVFP4, and the plain checkpoint behind it."""
    root = tmp_path_factory.mktemp("quantised")
    source = tiny.make_target(root / "source", "three", dtype=torch.bfloat16)
    drafter = tiny.make_drafter(root / "plain-drafter", tiny.drafter_for("three"), dtype=torch.bfloat16)
    target = tiny_quantized.quantize(source, root / "target", tiny_quantized.everything())
    return {
        "target": target,
        "plain": tiny_quantized.dequantized(target, root / "plain"),
        "drafter": tiny_quantized.quantize(drafter, root / "drafter", tiny_quantized.everything()),
    }


def texts(folder: Path, **options: object) -> list[list[int]]:
    llm = LLM(str(folder), device="cpu", max_model_len=128, block_size=16, **options)  # type: ignore[arg-type]
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> list[list[int]]:
    return texts(folders["plain"])


@pytest.mark.parametrize("held", ["dequantized", "packed"])
@pytest.mark.parametrize("method", [None, "ngram", "mtp", "dflash"])
def test_texts_are_those_of_the_plain_checkpoint(folders, expected, method, held):
    config = None if method is None else {"method": method, "num_speculative_tokens": 3}
    if method == "dflash":
        config["model"] = str(folders["drafter"])
    assert texts(folders["target"], quantized_weights=held, speculative_config=config) == expected


def test_our_own_export(folders, tmp_path):
    """What `paceline quantize` writes, loads; and what `paceline dequantize` makes of it, runs alike."""
    source = folders["target"].parent / "source"
    quantize_tiny(source, tmp_path / "export", recipe=weights_only(tmp_path))
    dequantize(tmp_path / "export", tmp_path / "decoded")
    decoded = texts(tmp_path / "decoded")
    assert texts(tmp_path / "export", quantization="modelopt") == decoded
    assert texts(tmp_path / "export", quantized_weights="packed") == decoded


def test_the_plan_says_what_is_held(folders):
    packed = packed_product(torch.device("cpu"), torch.bfloat16)
    for folder, wanted, is_ in (
        ("target", "dequantized", ("NVFP4", "dequantized")),
        ("target", "packed", ("NVFP4", "packed" if packed else "dequantized")),
        ("plain", "packed", (None, None)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            model = LLM(
                str(folders[folder]), device="cpu", max_model_len=128, quantized_weights=wanted
            ).plan()
        assert (model["model"]["quantization"], model["model"]["quantized_weights"]) == is_


def test_the_budget_counts_weights_as_they_will_be_held(folders):
    def weights(folder, held):
        model = ModelConfig(model=str(folders[folder]), device="cpu", quantized_weights=held)
        return forecast(resolve(EngineConfig(model=model)))["memory"]["weights"]

    assert weights("target", "dequantized") == weights("plain", "dequantized")
    if packed_product(torch.device("cpu"), torch.bfloat16):
        assert weights("target", "packed") < weights("target", "dequantized")


def test_a_wrong_choice_is_a_usage_error(folders):
    with pytest.raises(ConfigError, match="quantised by modelopt"):
        LLM(str(folders["target"]), device="cpu", quantization="none")
    with pytest.raises(ConfigError, match="not quantised"):
        LLM(str(folders["plain"]), device="cpu", quantization="modelopt")


def test_packed_weights_without_any_are_a_warning(folders):
    with pytest.warns(RuntimeWarning, match="quantized_weights"):
        LLM(str(folders["plain"]), device="cpu", max_model_len=128, quantized_weights="packed")

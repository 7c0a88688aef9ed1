"""Prefix reuse on CUDA: the text of prompts that are read whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.engine.harness import assemble_tiny
from tests.engine.test_prefix import ask, assemble, conversation, make_folders, one_by_one

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", ["plain", "mtp", "dflash"])
def test_a_growing_conversation_is_not_read_again(tmp_path: Path, method: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    target = tiny.make_target(tmp_path / "target", "three", dtype=torch.float32)
    drafter = tiny.make_drafter(tmp_path / "drafter", tiny.drafter_for("three"))
    speculative = {
        "plain": None,
        "mtp": {"method": "mtp"},
        "dflash": {"method": "dflash", "model": str(drafter)},
    }[method]
    prompts = conversation(4)

    def outputs(reuse: bool) -> tuple[list[list[int]], int]:
        parts = assemble_tiny(
            target, speculative=speculative, device="cuda", max_model_len=512, enable_prefix_caching=reuse
        )
        texts = [o.token_ids for o in one_by_one(parts, prompts)]
        prefix = parts.engine.runner.prefix
        return texts, prefix.hit_tokens if prefix else 0

    cold, _ = outputs(reuse=False)
    warm, hits = outputs(reuse=True)
    assert warm == cold
    assert hits == sum((len(p) - 1) // 64 * 64 for p in prompts[:-1])


@pytest.mark.parametrize("method", ["plain", "mtp", "dflash"])
def test_a_second_turn_goes_on_behind_the_answer(tmp_path: Path, method: str) -> None:
    """Answers come out of captured steps here, whose hidden rows the next step writes over."""
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    folders = make_folders(tmp_path)
    options = {"device": "cuda", "deterministic": False, "block_size": 16}
    warm = assemble(folders, method, enable_prefix_caching=True, **options)
    cold = assemble(folders, method, **options)
    prompt = conversation(1)[0]
    known = 0
    for turn in range(4):
        (output, cached), (expected, _) = ask(warm, prompt, turn), ask(cold, prompt, turn)
        assert output.token_ids == expected.token_ids and cached == known
        known = (len(prompt) + len(output.token_ids) - 1) // 16 * 16
        prompt = [*prompt, *output.token_ids, *range(3, 30)]

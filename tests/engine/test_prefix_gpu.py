"""Prefix reuse on CUDA: the text of prompts that are read whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.engine.harness import assemble_tiny
from tests.engine.test_prefix import conversation, one_by_one

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

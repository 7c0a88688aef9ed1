"""Dense targets on a CUDA device: captured steps write the eager steps' text, and both the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config.sampling import SamplingParams
from tests import tiny
from tests.engine.harness import assemble_tiny, random_prompts, run
from tests.tiny_dense import drafter_for_dense, make_dense

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("method", ["plain", "dflash", "ngram"])
@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3"])
def test_every_way_writes_the_cpus_text(tmp_path: Path, name: str, method: str) -> None:
    folder = make_dense(tmp_path / "target", name, dtype=torch.float32)
    drafter = tiny.make_drafter(tmp_path / "drafter", drafter_for_dense(name))
    methods: dict[str, dict[str, Any]] = {
        "dflash": {"method": "dflash", "model": str(drafter)},
        "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    }
    prompts = random_prompts(5)
    expected = run(assemble_tiny(folder), prompts, GREEDY)
    captured, eager = (
        assemble_tiny(
            folder,
            speculative=methods.get(method),
            device="cuda",
            deterministic=False,
            enable_prefix_caching=True,
        )
        for _ in range(2)
    )
    eager.engine.runner.buckets = None
    for parts in (captured, eager):
        outputs = run(parts, prompts, GREEDY)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
        if method == "dflash":
            assert all(o.stats.num_drafts for o in outputs)

"""A step in a bucket of fixed size equals the packed step, row for row; on CUDA it is also captured and
replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.config.sampling import SamplingParams
from paceline.engine.buckets import BucketCache
from tests import tiny
from tests.engine.harness import assemble_tiny, random_prompts, run

PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.9, top_k=20, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.9, repetition_penalty=1.3, max_tokens=24, min_tokens=24),
    SamplingParams(temperature=0.3, max_tokens=24, ignore_eos=True, allowed_token_ids=[7, 8]),
]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalised", "repeating"])
@pytest.mark.parametrize("method", ["plain", "mtp", "dflash"])
def test_bucketed_engine_writes_the_packed_engines_text(
    tmp_path: Path, method: str, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.make_target(tmp_path / "target", "three", dtype=torch.float32)
    drafter = tiny.make_drafter(tmp_path / "drafter", tiny.drafter_for("three"))
    speculative = {
        "plain": None,
        "mtp": {"method": "mtp"},
        "dflash": {"method": "dflash", "model": str(drafter)},
    }[method]
    prompts = random_prompts(5)
    packed = assemble_tiny(folder, speculative=speculative)
    bucketed = assemble_tiny(folder, speculative=speculative)
    # Capturing needs CUDA; on a CPU the bucket's step runs as it is.
    monkeypatch.setattr("paceline.engine.bucket.DecodeBucket.capture", lambda self: None)
    bucketed.engine.runner.buckets = BucketCache(
        bucketed.engine.runner.parts,
        block_size=8,
        num_drafts=bucketed.resolved.num_drafts,
        device=torch.device("cpu"),
        draft_method=packed.engine.runner.draft_method,
    )
    expected, got = run(packed, prompts, params), run(bucketed, prompts, params)
    assert [o.token_ids for o in got] == [o.token_ids for o in expected]
    assert [o.stats for o in got] == [o.stats for o in expected]

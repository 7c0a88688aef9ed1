"""A drafter with sliding layers (W = 64) drafts the same through preemption, eviction and reused prefixes as
from scratch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import Assembled
from paceline.engine.request import Request
from paceline.speculate.base import DraftRequest, Drafts
from tests import tiny
from tests.engine.harness import assemble_tiny, random_prompts, run

WINDOW = 64
PARAMS = SamplingParams(temperature=0.7, max_tokens=70, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("windowed")
    target = tiny.make_target(root / "target", "three", dtype=torch.float32)
    shape = tiny.drafter_for(
        "three", layer_types=("sliding_attention", "full_attention"), sliding_window=WINDOW
    )
    return target, tiny.make_drafter(root / "drafter", shape)


def assemble(folders: tuple[Path, Path], **options: Any) -> Assembled:
    # Greedy drafts are a function of the history alone, whatever the request's key.
    speculative = {"method": "dflash", "model": str(folders[1]), "draft_sample_method": "greedy"}
    return assemble_tiny(folders[0], speculative=speculative, **options)


def record(parts: Assembled) -> dict[tuple[int, ...], list[int]]:
    """Note, for each history that is drafted for, what was drafted."""
    drafted: dict[tuple[int, ...], list[int]] = {}
    runner = parts.engine.runner
    draft: Callable[[Any, Any], Drafts] = runner._draft

    def noted(windows: Any, anchors: Any) -> Drafts:
        drafts = draft(windows, anchors)
        for window, tokens, count in zip(windows, drafts.tokens.tolist(), drafts.counts, strict=True):
            history = (*window.sequence.prompt_ids, *window.sequence.output_ids)
            drafted[history] = tokens[:count]
        return drafts

    runner._draft = noted
    return drafted


def from_scratch(parts: Assembled, history: tuple[int, ...], count: int) -> list[int]:
    """Draft behind `history` in an engine that reads all of it as a prompt."""
    engine, got = parts.engine, []
    propose = engine.runner.parts.proposer.propose

    def swap_anchor(request: DraftRequest) -> Drafts:
        request.anchors[:] = history[-1]  # the recorded token, whatever the prompt's end would sample
        drafts = propose(request)
        got.append(drafts.tokens[0].tolist()[:count])
        return drafts

    engine.runner.parts.proposer.propose = swap_anchor
    engine.add(Request("scratch", list(history[:-1]), PARAMS.replace(max_tokens=count + 2), seed=1))
    while not got:
        assert engine.has_work, "it ended without a draft"
        engine.step()
    engine.abort("scratch")
    engine.runner.parts.proposer.propose = propose
    return got[0]


def test_drafts_survive_preemption_and_eviction(folders: tuple[Path, Path]) -> None:
    prompts = random_prompts(4, longest=150)
    quiet = assemble(folders)
    calm = record(quiet)
    expected = run(quiet, prompts, PARAMS)

    source = random.Random(2)
    tight = assemble(folders, num_blocks=45)  # 4 sequences of up to 28 blocks each
    shaken = record(tight)
    tight.engine.scheduler._force_preempt = lambda step, sequence: source.random() < 0.2
    outputs = run(tight, prompts, PARAMS)

    assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    common = [h for h in shaken if h in calm]
    assert common and any(len(h) > 2 * WINDOW for h in common), "histories longer than the window were meant"
    for history in common:
        size = min(len(calm[history]), len(shaken[history]))  # tight windows may have room for fewer
        assert calm[history][:size] == shaken[history][:size]

    fresh = assemble(folders)
    for history in source.sample(sorted((h for h in common if calm[h]), key=len), 12):
        assert from_scratch(fresh, history, len(calm[history])) == calm[history]


def test_drafts_behind_reused_prefixes_are_those_of_a_full_recompute(folders: tuple[Path, Path]) -> None:
    """Hits, evicted blocks and checkpoints, and preemption, all in one run."""
    source = random.Random(4)
    prompts: list[list[int]] = []
    for _ in range(3):  # three conversations, of which each prompt begins with the one before
        prompt = [source.randrange(3, 100) for _ in range(70)]
        for _ in range(3):
            prompts.append(list(prompt))
            prompt += [source.randrange(3, 100) for _ in range(50)]
    source.shuffle(prompts)
    params = PARAMS.replace(max_tokens=30)
    quiet = assemble(folders)
    calm = record(quiet)
    expected = run(quiet, prompts, params)

    tight = assemble(folders, num_blocks=100, enable_prefix_caching=True, prefix_checkpoints=3)
    shaken = record(tight)
    tight.engine.scheduler._force_preempt = lambda step, sequence: source.random() < 0.1
    for _ in range(2):
        outputs = run(tight, prompts, params)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    reuse = tight.engine.runner.prefix
    assert reuse is not None and 0 < reuse.hit_tokens < reuse.queried_tokens
    assert tight.engine.num_preemptions > 0

    assert shaken.keys() == calm.keys() and any(len(h) > 2 * WINDOW for h in calm)
    for history, drafts in shaken.items():
        size = min(len(calm[history]), len(drafts))
        assert calm[history][:size] == drafts[:size]
    fresh = assemble(folders)
    for history in source.sample(sorted((h for h in calm if calm[h]), key=len), 12):
        assert from_scratch(fresh, history, len(calm[history])) == calm[history]

"""The engine over targets without recurrent layers: the same promises, and a cache of blocks alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM
from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import Assembled
from paceline.engine.buckets import BucketCache
from paceline.engine.budget import forecast
from paceline.engine.describe import describe
from paceline.engine.request import Request
from paceline.engine.results import RequestOutput
from paceline.engine.verification import Plan, verify_model
from paceline.errors import PairingError
from tests import tiny
from tests.engine.harness import (
    ScriptedProposer,
    assemble_tiny,
    oracle_answers,
    random_prompts,
    run,
)
from tests.tiny_dense import drafter_for_dense, make_dense

PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, max_tokens=30, ignore_eos=True),
}


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target in bf16 and a drafter for it, which has a sliding layer."""
    root = tmp_path_factory.mktemp(request.param)
    shape = drafter_for_dense(
        request.param, layer_types=("sliding_attention", "full_attention"), sliding_window=64
    )
    target = make_dense(root / "target", request.param, dtype=torch.bfloat16)
    return target, tiny.make_drafter(root / "drafter", shape)


def speculative(method: str, drafter: Path) -> dict[str, Any] | None:
    lookup = {"method": "ngram", "prompt_lookup_min": 1}
    named = {"ngram": lookup, "dflash": {"method": "dflash", "model": str(drafter)}}
    return named.get(method)


@pytest.mark.parametrize("kind", PARAMS)
def test_drafts_leave_the_text_alone(folders: tuple[Path, Path], kind: str) -> None:
    folder, drafter = folders
    prompts = random_prompts(5)
    plain = run(assemble_tiny(folder), prompts, PARAMS[kind])
    scripted = ScriptedProposer(oracle_answers(prompts, plain))
    engines = [
        assemble_tiny(folder, proposer=scripted),
        assemble_tiny(folder, speculative=speculative("dflash", drafter), max_num_seqs=2),
        assemble_tiny(folder, speculative=speculative("ngram", drafter), max_num_seqs=3),
    ]
    for parts in engines:
        outputs = run(parts, prompts, PARAMS[kind])
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
        assert sum(o.stats.num_drafts for o in outputs), "nothing was drafted"
    stats = [o.stats for o in run(engines[0], prompts, PARAMS[kind])]
    assert sum(s.fully_accepted for s in stats) and sum(s.partly_accepted for s in stats)


def test_a_preempted_sequence_comes_back_as_it_was(folders: tuple[Path, Path]) -> None:
    folder, drafter = folders
    prompts = random_prompts(6)
    plain = run(assemble_tiny(folder), prompts, PARAMS["sampled"])
    parts = assemble_tiny(folder, speculative=speculative("dflash", drafter), num_blocks=60)
    source = random.Random(2)
    parts.engine.scheduler._force_preempt = lambda step, sequence: source.random() < 0.2
    outputs = run(parts, prompts, PARAMS["sampled"])
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
    assert parts.engine.num_preemptions > 0


@pytest.mark.parametrize("method", ["plain", "dflash"])
def test_bucketed_steps_are_the_packed_ones(
    folders: tuple[Path, Path], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, drafter = folders
    packed, bucketed = (assemble_tiny(folder, speculative=speculative(method, drafter)) for _ in range(2))
    # Capturing needs CUDA; on a CPU the bucket's step runs as it is.
    monkeypatch.setattr("paceline.engine.bucket.DecodeBucket.capture", lambda self: None)
    bucketed.engine.runner.buckets = BucketCache(
        bucketed.engine.runner.parts,
        block_size=8,
        num_drafts=bucketed.resolved.num_drafts,
        device=torch.device("cpu"),
        draft_method=packed.engine.runner.draft_method,
    )
    prompts = random_prompts(5)
    expected, got = run(packed, prompts, PARAMS["sampled"]), run(bucketed, prompts, PARAMS["sampled"])
    assert [o.token_ids for o in got] == [o.token_ids for o in expected]
    assert [o.stats for o in got] == [o.stats for o in expected]


def one_by_one(parts: Assembled, prompts: list[list[int]]) -> list[RequestOutput]:
    outputs = []
    for i, prompt in enumerate(prompts):
        parts.engine.add(Request(f"r{i}", prompt, PARAMS["sampled"], seed=i))
        while parts.engine.has_work:
            outputs += [event.output for event in parts.engine.step() if event.output]
            parts.engine.scheduler.check()
    return outputs


@pytest.mark.parametrize("method", ["plain", "dflash"])
def test_a_known_prefix_needs_no_checkpoint(folders: tuple[Path, Path], method: str) -> None:
    """Two prompts part behind a common text: already the second one finds it, as far as blocks are known."""
    folder, drafter = folders
    source = random.Random(3)
    common = [source.randrange(3, 100) for _ in range(140)]
    prompts = [common + [source.randrange(3, 100) for _ in range(60)] for _ in range(3)]
    options = {"speculative": speculative(method, drafter), "max_model_len": 512}
    warm_parts = assemble_tiny(folder, enable_prefix_caching=True, **options)  # type: ignore[arg-type]
    warm = one_by_one(warm_parts, prompts)
    cold = one_by_one(assemble_tiny(folder, **options), prompts)  # type: ignore[arg-type]
    assert [o.token_ids for o in warm] == [o.token_ids for o in cold]
    assert [o.stats for o in warm] == [o.stats for o in cold], "drafts behind a hit are those of a cold start"
    reuse = warm_parts.engine.runner.prefix
    assert reuse is not None and reuse.hit_tokens == 2 * 128 and reuse.num_checkpoints == 0
    reuse.clear()
    one_by_one(warm_parts, prompts[:1])
    assert reuse.hit_tokens == 2 * 128, "a cleared prefix is read again"


@pytest.mark.parametrize("method", ["plain", "dflash"])
def test_a_second_turn_goes_on_behind_the_answer(folders: tuple[Path, Path], method: str) -> None:
    """Outside deterministic mode an answer's full blocks are known too, and again that is all it takes."""
    folder, drafter = folders
    options = {"speculative": speculative(method, drafter), "max_model_len": 512, "deterministic": False}
    warm_parts = assemble_tiny(folder, enable_prefix_caching=True, **options)  # type: ignore[arg-type]
    cold_parts = assemble_tiny(folder, **options)  # type: ignore[arg-type]
    reuse, prompt = warm_parts.engine.runner.prefix, list(range(3, 40))
    assert reuse is not None
    for _ in range(4):
        (cold,), (warm,) = one_by_one(cold_parts, [prompt]), one_by_one(warm_parts, [prompt])
        assert warm.token_ids == cold.token_ids and warm.stats == cold.stats
        known, before = (len(prompt) + len(warm.token_ids) - 1) // 8 * 8, reuse.hit_tokens
        prompt = [*prompt, *warm.token_ids, *range(50, 61)]
        one_by_one(warm_parts, [prompt])
        assert reuse.hit_tokens - before == known and reuse.num_checkpoints == 0
        reuse.clear()


def test_checkpoints_without_effect_are_said(folders: tuple[Path, Path]) -> None:
    for key, value in (("prefix_checkpoints", 3), ("prefix_checkpoint_interval", 64)):
        with pytest.warns(RuntimeWarning, match=f"{key} has no effect: a prefix of a model without"):
            assemble_tiny(folders[0], enable_prefix_caching=True, **{key: value})  # type: ignore[arg-type]


def test_slots_take_no_memory_and_the_plan_says_so(folders: tuple[Path, Path]) -> None:
    parts = assemble_tiny(folders[0], enable_prefix_caching=True)
    assert parts.tensors.slot_stacks == () and parts.tensors.target.delta == []
    found = describe(parts)["memory"]
    assert found["bytes_per_slot"] == 0 and found["rollback_share_of_state"] is None
    plan = forecast(parts.resolved)["memory"]
    assert plan["recurrent_slots"] == plan["checkpoints"] == plan["num_checkpoints"] == 0
    assert plan["kv_blocks"] == parts.num_blocks * parts.resolved.shape.bytes_per_block > 0


def test_a_multi_token_head_is_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(PairingError, match="no multi-token head"):
        assemble_tiny(folders[0], speculative={"method": "mtp"})


def test_verify_proves_the_drafter_lossless(folders: tuple[Path, Path]) -> None:
    """The comparison behind `paceline verify`, in its deterministic mode."""
    folder, drafter = folders

    def open_engine(chosen: dict[str, Any] | None, **overrides: Any) -> LLM:
        return LLM(str(folder), speculative_config=chosen, device="cpu", **overrides)

    prompts = {"a": "the sky the sky the sky", "b": "an inn in the inn"}
    plan = Plan(seeds=2, temperature=0.7, max_tokens=48)
    for method in ("ngram", "dflash"):
        result = verify_model(open_engine, speculative(method, drafter), prompts, plan)
        assert result.identical and result.num_draft_tokens > 0 and result.mode == "deterministic"

"""The engine's promise on tiny models: speculation, batching and preemption never change the text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from paceline.config.sampling import SamplingParams
from paceline.engine.request import Request
from paceline.engine.results import SpeculationStats
from paceline.errors import CapacityError, RequestError
from tests import tiny
from tests.engine.harness import (
    NUM_DRAFTS,
    ScriptedProposer,
    assemble_tiny,
    oracle_answers,
    random_prompts,
    run,
)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    tiny.make_drafter(root / "drafter", tiny.drafter_for("three"))
    return tiny.make_target(root / "target", "three", dtype=request.param)


PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, max_tokens=30, ignore_eos=True),
    "processed": SamplingParams(
        temperature=1.1, top_p=0.95, top_k=40, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=0.2, min_tokens=5, logit_bias={7: 4.0, 9: -100.0}, max_tokens=30,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PARAMS)
def test_scripted_drafts_leave_the_text_alone(folder: Path, kind: str) -> None:
    prompts = random_prompts(5)
    plain = run(assemble_tiny(folder), prompts, PARAMS[kind])
    proposer = ScriptedProposer(oracle_answers(prompts, plain))
    drafted = run(assemble_tiny(folder, proposer=proposer), prompts, PARAMS[kind])
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    stats = [o.stats for o in drafted]
    assert sum(s.fully_accepted for s in stats) and sum(s.partly_accepted for s in stats)
    assert sum(s.not_accepted for s in stats), "every kind of window must have occurred"


def test_a_batch_gives_each_prompt_its_own_text(folder: Path) -> None:
    prompts = random_prompts(6)
    params = PARAMS["sampled"]
    together = run(assemble_tiny(folder, max_num_seqs=6), prompts, params)
    few = run(assemble_tiny(folder, max_num_seqs=2), prompts, params)
    assert [o.token_ids for o in few] == [o.token_ids for o in together]


@pytest.mark.parametrize("method", ["scripted", "mtp", "dflash"])
def test_preemption_at_every_step_changes_nothing(folder: Path, method: str) -> None:
    """Everything a sequence needs moves to the host and back, mid-prompt too: same text, same counts."""
    prompts = random_prompts(3, longest=150)
    # Hot: noise decides most tokens, so that coupled drafts of random weights agree often, but not always.
    params = PARAMS["sampled"] if method == "scripted" else PARAMS["sampled"].replace(temperature=4.0)
    answers = oracle_answers(prompts, run(assemble_tiny(folder), prompts, params))
    speculative = {"method": method, "num_speculative_tokens": NUM_DRAFTS}
    if method == "dflash":
        speculative["model"] = str(folder.parent / "drafter")

    def outcome(force: bool) -> tuple[list[list[int]], list[SpeculationStats]]:
        # One sequence at a time, so that the scripted guesses are asked for in the same order.
        if method == "scripted":
            parts = assemble_tiny(folder, proposer=ScriptedProposer(answers), max_num_seqs=1)
        else:
            parts = assemble_tiny(folder, speculative=speculative, max_num_seqs=1)
        preempted = []
        if force:
            parts.engine.scheduler._force_preempt = lambda step, sequence: preempted.append(step) or True
        outputs = run(parts, prompts, params)
        assert bool(preempted) == force
        return [o.token_ids for o in outputs], [o.stats for o in outputs]

    forced = outcome(force=True)
    assert forced == outcome(force=False)
    accepted, drafted = (sum(getattr(s, f"num_{k}_tokens") for s in forced[1]) for k in ("accepted", "draft"))
    assert 0 < accepted < drafted


def test_random_preemption_in_a_batch_keeps_the_text(folder: Path) -> None:
    prompts = random_prompts(5, longest=120)
    params = PARAMS["processed"]
    plain = run(assemble_tiny(folder), prompts, params)
    source = random.Random(1)
    parts = assemble_tiny(folder, proposer=ScriptedProposer(oracle_answers(prompts, plain)), max_num_seqs=5)
    parts.engine.scheduler._force_preempt = lambda step, sequence: source.random() < 0.3
    assert [o.token_ids for o in run(parts, prompts, params)] == [o.token_ids for o in plain]


def test_too_few_blocks_preempt_but_lose_nothing(folder: Path) -> None:
    prompts = random_prompts(4, longest=60)
    params = PARAMS["greedy"]
    plain = run(assemble_tiny(folder), prompts, params)
    proposer = ScriptedProposer(oracle_answers(prompts, plain))
    tight = assemble_tiny(folder, proposer=proposer, num_blocks=16)
    seen = []
    tight.engine.scheduler._swapper.save = _counted(tight.engine.scheduler._swapper.save, seen)
    assert [o.token_ids for o in run(tight, prompts, params)] == [o.token_ids for o in plain]
    assert seen, "the pool was meant to run out"


def _counted(function, seen):
    def call(*args):
        seen.append(args)
        return function(*args)

    return call


def test_no_host_memory_fails_the_request_and_says_so(folder: Path) -> None:
    parts = assemble_tiny(folder, num_blocks=16, host_swap_gib=0.0)
    with pytest.raises(CapacityError, match="host_swap_gib"):
        run(parts, random_prompts(4, longest=60), PARAMS["greedy"])


def test_n_choices_differ_and_the_first_is_that_of_one(folder: Path) -> None:
    prompt, params = random_prompts(1), PARAMS["sampled"].replace(temperature=1.0)
    one = run(assemble_tiny(folder), prompt, params)[0]
    many = run(assemble_tiny(folder), prompt, params.replace(n=16))[0]
    assert many.outputs[0].token_ids == one.token_ids
    assert len({tuple(choice.token_ids) for choice in many.outputs}) == 16
    assert [choice.index for choice in many.outputs] == list(range(16))


def test_logprobs_are_the_same_with_drafts(folder: Path) -> None:
    prompts = random_prompts(2)
    params = PARAMS["greedy"].replace(logprobs=3)
    plain = run(assemble_tiny(folder), prompts, params)
    proposer = ScriptedProposer(oracle_answers(prompts, plain))
    drafted = run(assemble_tiny(folder, proposer=proposer), prompts, params)
    for a, b in zip(plain, drafted, strict=True):
        assert a.logprobs == b.logprobs
        assert [entry.token_id for entry in a.logprobs] == a.token_ids
        for entry in a.logprobs:
            # Raw logits: ids beyond the tokenizer count here, though they are never sampled.
            best = list(entry.top.values())
            assert len(best) == 3 and best == sorted(best, reverse=True) and entry.logprob <= best[0]


def test_stop_inside_a_window_drops_what_follows(folder: Path) -> None:
    prompts = random_prompts(3)
    params = PARAMS["greedy"]
    free = run(assemble_tiny(folder), prompts, params)
    stop = free[0].token_ids[11]
    params = params.replace(stop_token_ids=[stop])
    plain = run(assemble_tiny(folder), prompts, params)
    proposer = ScriptedProposer(oracle_answers(prompts, free))
    drafted = run(assemble_tiny(folder, proposer=proposer), prompts, params)
    assert plain[0].finish_reason == "stop" and plain[0].token_ids[-1] == stop
    for a, b in zip(plain, drafted, strict=True):
        assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
        accepted = b.stats.num_accepted_tokens
        assert accepted == sum(b.stats.accepted_per_position)
        # Every pass emits its accepted drafts and at most one token of its own.
        assert accepted <= len(b.token_ids) - 1 <= accepted + b.stats.target_passes


def test_a_stop_string_inside_a_window_drops_what_follows(folder: Path) -> None:
    """Text, ids, log-probabilities, usage and counts end with the token that completes it."""
    prompts, params = random_prompts(3), PARAMS["greedy"].replace(logprobs=2)
    free = run(assemble_tiny(folder), prompts, params)
    text = free[0].text
    stop = text[len(text) // 2 :][:3]
    params = params.replace(stop=[stop])
    plain = run(assemble_tiny(folder), prompts, params)
    assert plain[0].finish_reason == "stop" and plain[0].text == text[: text.index(stop)]
    for seed in range(4):
        proposer = ScriptedProposer(oracle_answers(prompts, free), seed)
        for a, b in zip(plain, run(assemble_tiny(folder, proposer=proposer), prompts, params), strict=True):
            assert (a.text, a.token_ids, a.logprobs) == (b.text, b.token_ids, b.logprobs)
            assert (a.finish_reason, a.stop_reason, a.usage) == (b.finish_reason, b.stop_reason, b.usage)
            assert len(b.logprobs) == b.usage.completion_tokens == len(b.token_ids)
            assert b.stats.num_accepted_tokens == sum(b.stats.accepted_per_position)
            passes = b.stats.target_passes
            assert b.stats.num_accepted_tokens <= len(b.token_ids) - 1 <= b.stats.num_accepted_tokens + passes


def test_windows_respect_max_tokens_and_the_context(folder: Path) -> None:
    prompts = [random_prompts(1, seed=3, longest=20)[0]]
    params = PARAMS["greedy"].replace(max_tokens=None)
    plain = run(assemble_tiny(folder, max_model_len=48), prompts, params)[0]
    assert plain.finish_reason == "length" and len(prompts[0]) + len(plain.token_ids) == 48
    proposer = ScriptedProposer(oracle_answers(prompts, [plain]))
    drafted = run(assemble_tiny(folder, proposer=proposer, max_model_len=48), prompts, params)[0]
    assert drafted.token_ids == plain.token_ids


def test_abort_frees_everything_at_once(folder: Path) -> None:
    parts = assemble_tiny(folder)
    engine = parts.engine
    for i, prompt in enumerate(random_prompts(3)):
        engine.add(Request(str(i), prompt, PARAMS["greedy"], seed=i))
    for _ in range(4):
        engine.step()
    events = engine.abort("1")
    assert [e.finish_reason for e in events] == ["abort"] and events[0].output is not None
    engine.scheduler.check()
    for name in ("0", "2", "unknown"):
        engine.abort(name)
    assert not engine.has_work
    assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_usable


def test_a_prompt_that_can_never_run_is_refused_at_once(folder: Path) -> None:
    parts = assemble_tiny(folder, max_model_len=32)
    for prompt in ([], list(range(3, 40))):
        with pytest.raises(RequestError):
            parts.engine.add(Request("x", prompt, PARAMS["greedy"], seed=0))
    assert not parts.engine.has_work


def test_num_drafts_counts_only_windows_that_held_one(folder: Path) -> None:
    prompts = random_prompts(1)
    nothing = ScriptedProposer(lambda history: [])
    out = run(assemble_tiny(folder, proposer=nothing), prompts, PARAMS["greedy"])[0]
    figures = out.speculation
    assert figures["num_drafts"] == 0 and figures["acceptance_length"] is None
    assert figures["draft_acceptance_rate"] is None and figures["tokens_per_step"] == 1.0
    assert figures["accepted_per_position"] == [0] * NUM_DRAFTS

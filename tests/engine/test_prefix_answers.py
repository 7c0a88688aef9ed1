"""Reuse of answers, outside deterministic mode: the next turn goes on where the last answer ended."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import Assembled
from paceline.engine.request import Request
from paceline.kernels import gated_delta
from tests import tiny
from tests.engine.harness import ScriptedProposer, assemble_tiny, oracle_answers, run
from tests.engine.test_prefix import PARAMS, ask, assemble, make_folders

SOURCE = random.Random(11)


def words(count: int) -> list[int]:
    return [SOURCE.randrange(3, 100) for _ in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_folders(tmp_path_factory.mktemp("answers"))


def loose(folders: tuple[Path, Path], method: str, **options: object) -> Assembled:
    return assemble(folders, method, deterministic=False, enable_prefix_caching=True, **options)


def same(parts: Assembled, cold: Assembled, prompt: list[int], seed: int = 0) -> tuple[list[int], int]:
    """Ask both, compare text and accepted counts; the answer and what was not read."""
    (warm, cached), (expected, _) = ask(parts, prompt, seed), ask(cold, prompt, seed)
    assert warm.token_ids == expected.token_ids
    assert warm.stats == expected.stats, "drafts behind a hit are those of a cold start"
    return warm.token_ids, cached


@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize("method", ["plain", "mtp", "dflash"])
def test_a_second_turn_goes_on_behind_the_answer(
    folders: tuple[Path, Path], method: str, block_size: int
) -> None:
    parts = loose(folders, method, block_size=block_size)
    cold = assemble(folders, method, deterministic=False, block_size=block_size)
    for size in (50, 64, 75):
        prompt = words(size)
        answer, cached = same(parts, cold, prompt, seed=size)
        assert cached == 0
        committed = size + len(answer) - 1  # the answer's last token has no KV
        _, cached = same(parts, cold, [*prompt, *answer, *words(30)], seed=size + 1)
        assert cached == committed // block_size * block_size


def held(parts: Assembled, prompt: list[int], tokens: int) -> tuple[list[torch.Tensor], int]:
    """All that a sequence has after `tokens` tokens of its answer: target's, drafter's and head's KV of every
    committed position but 0 (where a head has no row), and the recurrent state; and the tokens not read."""
    engine = parts.engine
    engine.add(Request("r", prompt, PARAMS.replace(max_tokens=100), seed=3))
    (sequence,) = engine.scheduler.waiting
    while len(sequence.output_ids) < tokens:
        engine.step()
    blocks = [
        stack[:, sequence.blocks].flatten(1, 2)[:, 1 : sequence.length].clone()
        for stack in parts.tensors.block_stacks
    ]
    free = engine.scheduler.slots.allocate()
    engine.scheduler.slots.release(free)
    move = torch.tensor([sequence.slot, free, sequence.pending])
    for state in parts.tensors.target.delta:
        gated_delta.commit(state, move[:1], move[1:2], move[2:])
    states = [state.state[free].clone() for state in parts.tensors.target.delta]
    engine.abort("r")
    return [*blocks, *states], sequence.cached_tokens


@pytest.mark.parametrize("method", ["mtp", "dflash"])
def test_a_hit_brings_back_all_that_reading_gives(folders: tuple[Path, Path], method: str) -> None:
    """Keys and values of every model at every position, wherever in a window the hit's boundary lay."""
    parts, cold = loose(folders, method), assemble(folders, method, deterministic=False)
    agreeable = PARAMS.replace(allowed_token_ids=(5, 6), max_tokens=40)  # half of the drafts are accepted
    accepted = 0
    for size in range(30, 38):
        prompt = words(size)
        answer = ask(parts, prompt, params=agreeable)[0]
        accepted += answer.stats.num_accepted_tokens
        following = [*prompt, *answer.token_ids, *words(5)]
        (warm, cached), (expected, _) = held(parts, following, 4), held(cold, following, 4)
        assert cached == (size + 39) // 8 * 8
        for got, wanted in zip(warm, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert accepted > 60


def test_deterministic_mode_reuses_what_prompts_wrote_alone(folders: tuple[Path, Path]) -> None:
    parts = assemble(folders, "mtp", enable_prefix_caching=True)
    cold = assemble(folders, "mtp")
    for size, known in ((60, 0), (64, 64), (120, 64)):
        prompt = words(size)
        answer, _ = same(parts, cold, prompt)
        assert size + len(answer) > known + 8  # blocks beyond are full, but an answer's
        assert same(parts, cold, [*prompt, *answer, *words(60)], seed=1)[1] == known
        assert same(parts, cold, prompt)[1] == (size - 1) // 64 * 64


def test_identical_requests_reach_the_last_whole_block(folders: tuple[Path, Path]) -> None:
    parts, cold = loose(folders, "mtp"), assemble(folders, "mtp", deterministic=False)
    for size in (9, 17, 24, 25, 80, 81):  # short prompts, and whole numbers of blocks
        prompt = words(size)
        first, cached = same(parts, cold, prompt)
        assert cached == 0
        for _ in range(2):
            again, cached = same(parts, cold, prompt)
            assert again == first and cached == (size - 1) // 8 * 8


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_agent_loop_of_thirty_turns(tmp_path: Path, deterministic: bool) -> None:
    """Every prompt is the one before, its answer and a tool's result."""
    shape = replace(tiny.TARGETS["plain"], max_position_embeddings=2048)
    folder = tiny.make_target(tmp_path / "target", shape, dtype=torch.float32)
    params = SamplingParams(temperature=0.7, max_tokens=12, ignore_eos=True)
    options = {"speculative": {"method": "mtp"}, "max_model_len": 1800, "deterministic": deterministic}
    parts = assemble_tiny(folder, enable_prefix_caching=True, prefix_checkpoints=4, **options)  # type: ignore[arg-type]
    cold = assemble_tiny(folder, **options)  # type: ignore[arg-type]
    prompts, reads, prompt, expected = [], [], words(70), 0
    for turn in range(30):
        prompts.append(list(prompt))
        output, cached = ask(parts, prompt, turn, params)
        assert cached == expected
        reads.append(len(prompt) - cached)
        if deterministic:
            expected = len(prompt) // 64 * 64
        else:
            expected = (len(prompt) + len(output.token_ids) - 1) // 8 * 8
        if turn % 10 == 9:
            assert ask(cold, prompt, turn, params)[0].token_ids == output.token_ids
        prompt += [*output.token_ids, *words(SOURCE.randint(5, 60))]
    prefix = parts.engine.runner.prefix
    assert prefix is not None and prefix.num_checkpoints <= 4
    limit = 64 + 12 + 60 if deterministic else 8 + 60  # the turn's own, and what lies behind the boundary
    assert all(after > before for before, after in pairwise(map(len, prompts)))
    assert max(reads[1:]) <= limit


def test_prompts_read_side_by_side_leave_a_state_where_they_part(folders: tuple[Path, Path]) -> None:
    """The shared system prompt of requests that start together is known to the next one."""
    parts, system = loose(folders, "mtp"), words(100)
    together = [[*system, *words(40)] for _ in range(3)]
    run(parts, together, PARAMS)
    cold = assemble(folders, "mtp", deterministic=False)
    assert same(parts, cold, [*system, *words(50)])[1] == 96


@pytest.mark.parametrize(("deterministic", "known"), [(True, 128), (False, 144)])
def test_states_at_an_interval_serve_the_second_sight(
    folders: tuple[Path, Path], deterministic: bool, known: int
) -> None:
    """A prompt that leaves the known text in its middle finds the last regular state before that."""
    interval = 64 if deterministic else 48
    options = {"enable_prefix_caching": True, "deterministic": deterministic, "prefix_checkpoints": 16}
    parts = assemble(folders, "dflash", prefix_checkpoint_interval=interval, **options)
    cold = assemble(folders, "dflash", deterministic=deterministic)
    prompt = words(300)
    same(parts, cold, prompt)
    assert same(parts, cold, [*prompt[:155], *words(40)])[1] == known
    without = assemble(folders, "dflash", **options)
    same(without, cold, prompt)
    assert same(without, cold, [*prompt[:155], *words(40)])[1] == 0


def test_an_answer_keeps_its_regular_states_and_its_last(folders: tuple[Path, Path]) -> None:
    parts = loose(folders, "plain", prefix_checkpoint_interval=32, prefix_checkpoints=32)
    prompt, params = words(20), PARAMS.replace(max_tokens=100)
    answer = ask(parts, prompt, params=params)[0].token_ids
    prefix = parts.engine.runner.prefix
    assert prefix is not None and prefix.num_checkpoints == 1 + 3 + 1  # at 16; 32, 64, 96; 112
    whole = [*prompt, *answer]
    cold = assemble(folders, "plain", deterministic=False)
    assert same(parts, cold, [*whole[:90], *words(20)])[1] == 64
    assert same(parts, cold, [*whole, *words(20)])[1] == 112


def scripted(folders: tuple[Path, Path], cold_prompts: list[list[int]]) -> Assembled:
    """An engine whose windows hold right and wrong drafts in any number."""
    plain = assemble(folders, "plain", deterministic=False)
    outputs = run(plain, cold_prompts, PARAMS)
    proposer = ScriptedProposer(oracle_answers(cold_prompts, outputs))
    return assemble_tiny(
        folders[0], proposer=proposer, max_model_len=512, deterministic=False, enable_prefix_caching=True
    )


def test_a_block_is_found_once_every_position_in_it_is_committed(folders: tuple[Path, Path]) -> None:
    prompts = [words(size) for size in (13, 30, 41, 55)]
    parts = scripted(folders, prompts)
    pool, scheduler = parts.engine.scheduler.blocks, parts.engine.scheduler
    seen = 0

    def check() -> None:
        nonlocal seen
        for sequence in scheduler.running:
            for index, block in enumerate(sequence.blocks):
                if block in pool._hash_of:
                    assert (index + 1) * 8 <= sequence.length
                    seen += (index + 1) * 8 > len(sequence.prompt_ids)
                elif (index + 1) * 8 <= sequence.length:
                    raise AssertionError("a full block cannot be found")

    first = run(parts, prompts, PARAMS, between=check)
    assert seen
    following = [[*p, *o.token_ids, *words(9)] for p, o in zip(prompts, first, strict=True)]
    warm = run(parts, following, PARAMS)
    cold = run(assemble(folders, "plain", deterministic=False), following, PARAMS)
    assert [o.token_ids for o in warm] == [o.token_ids for o in cold]


def test_answers_cut_within_a_window_are_known_up_to_the_cut(folders: tuple[Path, Path]) -> None:
    """A stop token may end an answer in the middle of a window, whose later rows count for nothing."""
    cold = assemble(folders, "plain", deterministic=False)
    prompts = [words(30) for _ in range(6)]
    outputs = run(cold, prompts, PARAMS)
    parts = scripted(folders, prompts)
    for i, (prompt, whole) in enumerate(zip(prompts, outputs, strict=True)):
        stop = PARAMS.replace(stop_token_ids=(whole.token_ids[12],))
        answer = ask(parts, prompt, 100 + i, stop)[0].token_ids
        assert answer == whole.token_ids[: len(answer)] and 1 <= len(answer) <= 13
        follow = [*prompt, *answer, *words(20)]
        (warm, cached), (expected, _) = ask(parts, follow), ask(cold, follow)
        assert warm.token_ids == expected.token_ids and cached == (30 + len(answer) - 1) // 8 * 8


def test_answers_survive_preemption_eviction_and_few_checkpoints(folders: tuple[Path, Path]) -> None:
    """Three agents side by side in a pool that does not hold them all, with states that are given up."""
    cold = assemble(folders, "dflash", deterministic=False)
    parts = loose(folders, "dflash", num_blocks=70, prefix_checkpoints=3)
    source = random.Random(5)
    parts.engine.scheduler._force_preempt = lambda step, sequence: source.random() < 0.1
    prompts = [words(40) for _ in range(3)]
    for _ in range(5):
        warm, expected = run(parts, prompts, PARAMS), run(cold, prompts, PARAMS)
        assert [o.token_ids for o in warm] == [o.token_ids for o in expected]
        prompts = [[*p, *o.token_ids, *words(25)] for p, o in zip(prompts, warm, strict=True)]
    prefix = parts.engine.runner.prefix
    assert prefix is not None and prefix.hit_tokens > 0 and prefix.num_checkpoints <= 3
    assert parts.engine.num_preemptions > 0


def test_a_sequence_that_came_back_is_found_in_its_new_blocks(folders: tuple[Path, Path]) -> None:
    parts, cold = loose(folders, "mtp"), assemble(folders, "mtp", deterministic=False)
    engine, prompt = parts.engine, words(40)
    engine.add(Request("r", prompt, PARAMS, seed=0))
    (sequence,) = engine.scheduler.waiting
    while len(sequence.output_ids) < 5:
        engine.step()
    engine.scheduler.preempt(sequence)
    pool = engine.scheduler.blocks
    pool.unref(pool.allocate(pool.num_free))  # others come and go, and its old blocks with them
    while engine.has_work:
        engine.step()
    answer = sequence.output_ids
    assert same(parts, cold, [*prompt, *answer, *words(9)])[1] == (40 + len(answer) - 1) // 8 * 8


def test_an_answer_that_was_stopped_half_way_is_known_as_far_as_it_came(folders: tuple[Path, Path]) -> None:
    parts, cold = loose(folders, "mtp"), assemble(folders, "mtp", deterministic=False)
    engine, prompt, written = parts.engine, words(40), []
    engine.add(Request("r", prompt, PARAMS.replace(max_tokens=200), seed=0))
    while len(written) < 30:
        written += [token for event in engine.step() for token in event.token_ids]
    engine.abort("r")
    assert not engine.has_work
    assert same(parts, cold, [*prompt, *written, *words(10)])[1] == (40 + len(written) - 1) // 8 * 8


def test_what_runs_is_remembered_anew_after_all_was_forgotten(folders: tuple[Path, Path]) -> None:
    parts, cold = loose(folders, "mtp"), assemble(folders, "mtp", deterministic=False)
    engine, prefix, prompt, written = parts.engine, parts.engine.runner.prefix, words(40), []
    assert prefix is not None
    twins = [Request(f"r{i}", prompt, PARAMS.replace(max_tokens=40), seed=0) for i in range(2)]
    same(parts, cold, prompt)
    for request in twins:  # they hold the same blocks
        engine.add(request)
    while engine.has_work:
        written += [token for event in engine.step() if event.id == "r0" for token in event.token_ids]
        if prefix.num_checkpoints and 10 < len(written) < 20:
            prefix.clear()
            assert prefix.num_checkpoints == 0
        engine.scheduler.check()
    assert same(parts, cold, [*prompt, *written, *words(10)])[1] == (40 + len(written) - 1) // 8 * 8
    prefix.clear()
    assert same(parts, cold, prompt)[1] == 0

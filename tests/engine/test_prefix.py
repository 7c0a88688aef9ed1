"""Reused prefixes: the text and the accepted counts of a prompt that is read whole, with blocks and state
reused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import Assembled
from paceline.engine.request import Request
from paceline.engine.results import RequestOutput
from paceline.errors import ConfigError
from tests import tiny
from tests.engine.harness import assemble_tiny, run

PARAMS = SamplingParams(temperature=0.8, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_folders(tmp_path_factory.mktemp("prefix"))


def make_folders(root: Path) -> tuple[Path, Path]:
    """A hybrid with a multi-token head, and a drafter one of whose layers has a window."""
    target = tiny.make_target(root / "target", "three", dtype=torch.float32)
    shape = tiny.drafter_for("three", layer_types=("sliding_attention", "full_attention"), sliding_window=64)
    return target, tiny.make_drafter(root / "drafter", shape)


def assemble(folders: tuple[Path, Path], method: str, **options: object) -> Assembled:
    speculative = {
        "plain": None,
        "mtp": {"method": "mtp"},
        "dflash": {"method": "dflash", "model": str(folders[1])},
    }[method]
    return assemble_tiny(folders[0], speculative=speculative, max_model_len=512, **options)  # type: ignore[arg-type]


def conversation(turns: int, seed: int = 0) -> list[list[int]]:
    """Prompts of which each begins with the one before."""
    source = random.Random(seed)
    prompts, prompt = [], [source.randrange(3, 100) for _ in range(70)]
    for _ in range(turns):
        prompts.append(list(prompt))
        prompt += [source.randrange(3, 100) for _ in range(source.randint(40, 90))]
    return prompts


def one_by_one(parts: Assembled, prompts: list[list[int]]) -> list[RequestOutput]:
    return [ask(parts, prompt, seed=i)[0] for i, prompt in enumerate(prompts)]


def ask(
    parts: Assembled, prompt: list[int], seed: int = 0, params: SamplingParams = PARAMS
) -> tuple[RequestOutput, int]:
    """One request alone: its output, and the tokens of its prompt that were not read. Nothing leaks."""
    engine = parts.engine
    engine.add(Request("r", prompt, params, seed=seed))
    outputs, cached = [], 0
    while engine.has_work:
        for event in engine.step():
            outputs += [event.output] if event.output else []
            cached = event.cached_tokens
        engine.scheduler.check()
    if engine.runner.prefix:
        engine.runner.prefix.check(live=0)
    assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_usable
    return outputs[0], cached


@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize("method", ["plain", "mtp", "dflash"])
def test_a_growing_conversation_is_not_read_again(
    folders: tuple[Path, Path], method: str, block_size: int
) -> None:
    prompts = conversation(5)
    cold = one_by_one(assemble(folders, method, block_size=block_size), prompts)
    warm_parts = assemble(folders, method, block_size=block_size, enable_prefix_caching=True)
    warm = one_by_one(warm_parts, prompts)
    assert [o.token_ids for o in warm] == [o.token_ids for o in cold]
    assert [o.stats for o in warm] == [o.stats for o in cold], "drafts behind a hit are those of a cold start"
    reuse = warm_parts.engine.runner.prefix
    # Every turn but the first finds the last boundary of the one before.
    expected = sum((len(p) - 1) // 64 * 64 for p in prompts[:-1])
    assert reuse is not None and reuse.hit_tokens == expected
    assert reuse.queried_tokens == sum(map(len, prompts))


@pytest.mark.parametrize("drafts", [1, 3, 6])
@pytest.mark.parametrize("method", ["mtp", "dflash"])
def test_a_request_is_answered_warm_as_it_was_cold(
    folders: tuple[Path, Path], method: str, drafts: int
) -> None:
    """In one engine, at one draft length: the same text, and at every position the same accepted drafts."""
    options: dict[str, object] = {"method": method, "num_speculative_tokens": drafts}
    if method == "dflash":
        options["model"] = str(folders[1])
    parts = assemble_tiny(folders[0], speculative=options, max_model_len=512, enable_prefix_caching=True)
    params = PARAMS.replace(allowed_token_ids=(5, 6), max_tokens=60)  # half of the drafts are accepted
    prompt = conversation(3)[-1]
    (cold, none), *others = [ask(parts, prompt, 7, params) for _ in range(3)]
    assert none == 0 and sum(cold.stats.accepted_per_position) > 10
    for warm, cached in others:
        assert cached == (len(prompt) - 1) // 64 * 64
        assert warm.token_ids == cold.token_ids and warm.stats == cold.stats


def test_a_shared_beginning_gets_a_checkpoint_at_its_third_sight(folders: tuple[Path, Path]) -> None:
    """Two prompts part behind a common system text: the second leaves a checkpoint there, the third finds
    it."""
    source = random.Random(3)
    system = [source.randrange(3, 100) for _ in range(130)]
    prompts = [system + [source.randrange(3, 100) for _ in range(80)] for _ in range(3)]
    parts = assemble(folders, "mtp", enable_prefix_caching=True)
    warm = one_by_one(parts, prompts)
    assert parts.engine.runner.prefix is not None and parts.engine.runner.prefix.hit_tokens == 128
    cold = one_by_one(assemble(folders, "mtp"), prompts)
    assert [o.token_ids for o in warm] == [o.token_ids for o in cold]


@pytest.mark.parametrize("deterministic", [True, False])
def test_hits_survive_eviction_preemption_and_few_checkpoints(
    folders: tuple[Path, Path], deterministic: bool
) -> None:
    prompts = [p for seed in range(3) for p in conversation(4, seed)]
    random.Random(1).shuffle(prompts)
    cold = run(assemble(folders, "dflash", deterministic=deterministic), prompts, PARAMS)
    parts = assemble(
        folders,
        "dflash",
        num_blocks=130,
        enable_prefix_caching=True,
        prefix_checkpoints=2,
        deterministic=deterministic,
    )
    source = random.Random(5)
    parts.engine.scheduler._force_preempt = lambda step, sequence: source.random() < 0.1
    for _ in range(2):
        again = run(parts, prompts, PARAMS)
        assert [o.token_ids for o in again] == [o.token_ids for o in cold]
    assert parts.engine.runner.prefix is not None and parts.engine.runner.prefix.hit_tokens > 0
    assert parts.engine.num_preemptions > 0


def test_a_prompt_that_is_a_whole_number_of_blocks_still_reads_a_token(folders: tuple[Path, Path]) -> None:
    prompt = conversation(1)[0][:64] + [5] * 64
    parts = assemble(folders, "mtp", enable_prefix_caching=True)
    first, second = one_by_one(parts, [prompt, prompt])
    assert parts.engine.runner.prefix is not None and parts.engine.runner.prefix.hit_tokens == 64
    assert len(first.token_ids) == len(second.token_ids) == 20


def test_an_interval_off_the_blocks_is_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="block_size = 8 and of 64 in deterministic mode: use 128"):
        assemble(folders, "plain", enable_prefix_caching=True, prefix_checkpoint_interval=72)
    with pytest.raises(ConfigError, match="must be a multiple of block_size = 32: use 96"):
        assemble(
            folders, "plain", enable_prefix_caching=True, prefix_checkpoint_interval=72, block_size=32,
            deterministic=False,
        )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="checkpoint_interval has no effect: prefix caching is off"):
        assemble(folders, "plain", prefix_checkpoint_interval=64)


def test_answers_make_room_for_their_states(folders: tuple[Path, Path]) -> None:
    """Outside deterministic mode a running sequence leaves two: its prompt's and its answer's."""
    counts = [
        assemble(folders, "plain", deterministic=mode, enable_prefix_caching=True, max_num_seqs=seqs)
        .resolved.num_checkpoints
        for mode, seqs in ((True, 5), (False, 5), (True, 2), (False, 2))
    ]  # fmt: skip
    assert counts == [5, 10, 4, 4]

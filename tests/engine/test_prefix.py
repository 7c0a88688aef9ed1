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
from tests import tiny
from tests.engine.harness import assemble_tiny, run

PARAMS = SamplingParams(temperature=0.8, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("prefix")
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
    outputs = []
    for i, prompt in enumerate(prompts):
        parts.engine.add(Request(f"r{i}", prompt, PARAMS, seed=i))
        while parts.engine.has_work:
            outputs += [event.output for event in parts.engine.step() if event.output]
            parts.engine.scheduler.check()
    return outputs


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

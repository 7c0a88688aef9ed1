"""Engines over tiny models for tests, with proposers whose guesses are scripted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SpeculativeConfig
from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import Assembled, build
from paceline.engine.request import Request
from paceline.engine.resolve import resolve
from paceline.engine.results import RequestOutput
from paceline.engine.tokenizer import load_tokenizer
from paceline.models.registry import load_target
from paceline.speculate.base import DraftRequest, Drafts, Proposer

NUM_DRAFTS = 4


class ScriptedProposer(Proposer):
    """Knows the right continuation of every sequence and spoils some of it: all acceptances 0..n occur."""

    method = "ngram"
    needs_history = True
    num_speculative_tokens = NUM_DRAFTS

    def __init__(self, answers: Callable[[Sequence[int]], list[int]], seed: int = 0, vocab: int = 100):
        self.answers, self.random, self.vocab = answers, random.Random(seed), vocab

    def propose(self, request: DraftRequest) -> Drafts:
        """Right tokens up to a random point, then wrong ones; sometimes fewer, sometimes none."""
        assert request.histories is not None
        rows, counts = [], []
        for history, limit in zip(request.histories, request.limits, strict=True):
            right = self.answers(history)[:limit]
            keep = self.random.randint(0, len(right))
            guess = right[:keep] + [(token + 1) % self.vocab for token in right[keep:]]
            guess = guess[: self.random.choice([0, 1, limit, limit])]
            rows.append(guess + [0] * (NUM_DRAFTS - len(guess)))
            counts.append(len(guess))
        return Drafts(torch.tensor(rows, dtype=torch.int64), counts)


def assemble_tiny(
    folder: Path,
    *,
    speculative: dict[str, Any] | None = None,
    proposer: Proposer | None = None,
    max_num_seqs: int = 4,
    num_blocks: int | None = None,
    block_size: int = 8,
    host_swap_gib: float = 1.0,
    max_model_len: int = 256,
    deterministic: bool = True,
    enable_prefix_caching: bool = False,
    prefix_checkpoints: int | None = None,
    prefix_checkpoint_interval: int | None = None,
    device: str = "cpu",
) -> Assembled:
    """An engine over the tiny target in `folder`."""
    if proposer:
        speculative = {"method": "ngram", "num_speculative_tokens": NUM_DRAFTS}
    config = EngineConfig(
        model=ModelConfig(model=str(folder), device=device, max_model_len=max_model_len),
        cache=CacheConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            host_swap_gib=host_swap_gib,
            enable_prefix_caching=enable_prefix_caching,
            prefix_checkpoints=prefix_checkpoints,
            prefix_checkpoint_interval=prefix_checkpoint_interval,
        ),
        speculative=SpeculativeConfig.parse(speculative) if speculative else None,
        max_num_seqs=max_num_seqs,
        deterministic=deterministic,
    )
    resolved = resolve(config)
    target = load_target(
        folder, "auto", resolved.device, resolved.deterministic, max_positions=resolved.positions
    )
    return build(resolved, target, load_tokenizer(folder), {}, proposer)


def run(
    parts: Assembled,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    between: Callable[[], None] | None = None,
) -> list[RequestOutput]:
    """Run prompts as one batch; `between` is called after every step. Checks the pools at each step."""
    engine = parts.engine
    done: dict[str, RequestOutput] = {}
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), list(prompt), params, seed=100 + i))
    while engine.has_work:
        for event in engine.step():
            if event.error:
                raise event.error
            if event.output:
                done[event.id] = event.output
        engine.scheduler.check()
        if engine.runner.prefix:
            engine.runner.prefix.check(live=len(engine.scheduler.running) + len(engine.scheduler.swapped))
        if between:
            between()
    assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_usable, "blocks leaked"
    return [done[str(i)] for i in range(len(prompts))]


def oracle_answers(
    prompts: Sequence[list[int]], outputs: Sequence[RequestOutput]
) -> Callable[[Sequence[int]], list[int]]:
    """What follows each history, from a plain run of the same prompts."""
    whole = [prompt + out.token_ids for prompt, out in zip(prompts, outputs, strict=True)]

    def answers(history: Sequence[int]) -> list[int]:
        for tokens in whole:
            if tokens[: len(history)] == list(history):
                return tokens[len(history) :]
        return []

    return answers


def random_prompts(count: int, *, seed: int = 0, longest: int = 90, vocab: int = 100) -> list[list[int]]:
    """Prompts of different lengths, none a prefix of another."""
    source = random.Random(seed)
    return [
        [i + 3] + [source.randrange(3, vocab) for _ in range(source.randint(0, longest))]
        for i in range(count)
    ]

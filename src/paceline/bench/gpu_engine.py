"""An engine over random weights, and the timing of batches that it decodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.bench import gpu_profile
from paceline.bench.gpu_measured import Batch, Measured, Setting
from paceline.bench.random_model import DrafterShape, load_random_drafter
from paceline.bench.spans import replaced
from paceline.bench.synthetic import SyntheticAcceptance
from paceline.bench.workload import random_prompts
from paceline.cache.base import blocks_for
from paceline.cache.tensors import CacheShape
from paceline.config import CacheConfig, EngineConfig, ModelConfig, SpeculativeConfig
from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import Assembled, build
from paceline.engine.bucket import BucketSize, DecodeBucket
from paceline.engine.request import Request
from paceline.engine.resolve import Resolved
from paceline.speculate.dflash import DFlashProposer

if TYPE_CHECKING:
    from paceline.bench.shapes import HybridShape
    from paceline.models.base import KVPair, TargetModel
    from paceline.models.spec import DrafterSpec

BATCHED_TOKENS = 8192
"""Rows of a step, as the peer was given."""
WARM_TOKENS = 64
"""Enough that no sequence ends before all have decoded together for some steps."""
SHORTER = (1.0, 0.5, 0.25)
"""Parts of the wanted output length that are tried when time is short."""


class RandomEngine:
    """An engine of one mode over a random target, which engines of other modes may share."""

    def __init__(
        self,
        mode: str,
        target: TargetModel,
        shape: HybridShape,
        drafter: DrafterShape,
        device: torch.device,
        *,
        max_num_seqs: int,
        drafts: int,
        acceptance: float,
        max_model_len: int,
        graphs: bool,
    ) -> None:
        self.mode, self.shape, self.device = mode, shape, device
        self.drafts = drafts if mode == "dflash" else 0
        kv: list[KVPair] = []
        proposer, spec = None, None
        if self.drafts:
            positions = max_model_len + drafts + 2
            model = load_random_drafter(drafter, target.spec, device, drafts, positions)
            proposer, spec = DFlashProposer(model, target, kv, drafts), model.spec
        self.acceptance = acceptance
        resolved = _resolved(target, spec, device, self.drafts, max_num_seqs, max_model_len)
        self.parts: Assembled = build(resolved, target, None, {}, proposer)
        kv += self.parts.tensors.drafter  # the cache exists only now
        runner = self.parts.engine.runner
        if not graphs:
            runner.buckets = None
        self.path = "eager" if runner.buckets is None else "graph"
        if self.drafts:
            sampler = runner.parts.sampler
            # On the object: this engine's own sampler, for as long as it lives.
            sampler.sample = SyntheticAcceptance(sampler, acceptance, drafts).sample  # type: ignore[method-assign]

    def setting(self, concurrency: int, prompt_tokens: int, few: int, many: int) -> Setting:
        """What `measure` takes."""
        return Setting(
            self.mode, self.path, concurrency, self.drafts, self.acceptance, prompt_tokens, few, many
        )

    def measure(self, setting: Setting, deadline: float) -> Measured | None:
        """Warm up, then time both batches; None if that would not end by `deadline` (`perf_counter`)."""
        if time.perf_counter() > deadline:
            return None
        with self._all_decoding(setting):
            self._capture_all(setting)
            self.parts.engine.step()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        few = self._batch(setting, setting.few, seed=2)
        many_tokens = self._affordable(setting, few, deadline)
        if many_tokens is None:
            return None
        many = self._batch(setting, many_tokens, seed=3)
        peak = torch.cuda.max_memory_reserved() if self.device.type == "cuda" else None
        return Measured(setting, few, many, many_tokens, peak)

    def look_into_steps(self, setting: Setting) -> dict[str, Any]:
        """Where the time of full steps goes: kernels as they ran, and an eager step part by part.

        Not to be timed after: a profiler may slow down the process that it was in.
        """
        engine, found = self.parts.engine, {}
        with self._all_decoding(setting):
            if self.device.type == "cuda":
                _, found["kernels"] = gpu_profile.kernels(engine.step)
            buckets, engine.runner.buckets = engine.runner.buckets, None
            engine.step()  # packed rows have other shapes: their kernels load now
            for name in ("operators", "phases"):
                if self._is_full(setting):
                    step, by_operator = engine.step, name == "operators"
                    _, times = gpu_profile.split(step, engine.runner.parts, by_operator=by_operator)
                    found[f"eager_ms_by_{name}"] = times
            engine.runner.buckets = buckets
        return found

    def _affordable(self, setting: Setting, few: Batch, deadline: float) -> int | None:
        """The longest output that can be expected to end in time."""
        left = deadline - time.perf_counter()
        if few.full_tokens:
            a_token = sum(few.full_steps) * setting.concurrency / few.full_tokens
        else:
            a_token = few.seconds / setting.few
        lengths = [int(setting.many * part) for part in SHORTER]
        # The last sequences of a batch are alone, hence the margin.
        seconds = {n: few.seconds + 1.4 * a_token * (n - setting.few) for n in lengths if n > setting.few}
        return max((n for n in seconds if seconds[n] < left), default=None)

    def _batch(self, setting: Setting, tokens: int, seed: int) -> Batch:
        """Run one batch of new prompts."""
        engine, batch = self.parts.engine, Batch()
        with _captures(batch.captures):
            start = time.perf_counter()
            self._add(setting, tokens, seed)
            while engine.has_work:
                full, captured = self._is_full(setting), len(batch.captures)
                before = time.perf_counter()
                events = engine.step()
                if full and len(batch.captures) == captured:
                    batch.full_steps.append(time.perf_counter() - before)
                    batch.full_tokens += sum(len(event.token_ids) for event in events)
                batch.outputs += [event.output for event in events if event.output]
            batch.seconds = time.perf_counter() - start - sum(batch.captures)
        batch.tokens = sum(len(output.token_ids) for output in batch.outputs)
        assert batch.tokens == tokens * setting.concurrency, "a sequence ended early"
        return batch

    @contextmanager
    def _all_decoding(self, setting: Setting) -> Iterator[None]:
        """A batch whose prompts are read; what has not ended by then is aborted afterwards."""
        engine = self.parts.engine
        self._add(setting, WARM_TOKENS, seed=1)
        while not self._is_full(setting):
            engine.step()
        yield
        self.abort(setting)

    def abort(self, setting: Setting) -> None:
        """End whatever of a batch has not ended."""
        for i in range(setting.concurrency):
            self.parts.engine.abort(str(i))

    def _add(self, setting: Setting, tokens: int, seed: int) -> None:
        prompts = random_prompts(setting.concurrency, setting.prompt_tokens, self.shape.vocab, seed)
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            self.parts.engine.add(Request(str(i), prompt, params, seed=i))

    def _is_full(self, setting: Setting) -> bool:
        """Whether every sequence of the batch decodes in the next step."""
        running = self.parts.engine.scheduler.running
        return len(running) == setting.concurrency and not any(s.in_prefill for s in running)

    def _capture_all(self, setting: Setting) -> None:
        """Graphs of every batch size up to this one: sequences that accept much end before the others."""
        buckets = self.parts.engine.runner.buckets
        if buckets is None:
            return
        block_size = self.parts.resolved.config.cache.block_size
        lengths = range(setting.prompt_tokens, setting.prompt_tokens + setting.many)
        for num_seqs in [1 << k for k in range((setting.concurrency - 1).bit_length() + 1)]:
            for rows in {1, self.drafts + 1}:
                needed = {blocks_for(length + rows + 1, block_size) for length in lengths}
                for blocks in {1 << (count - 1).bit_length() for count in needed}:
                    buckets.of(BucketSize(num_seqs, rows, blocks, block_size))


@contextmanager
def _captures(seconds: list[float]) -> Iterator[None]:
    """Collect how long each capture of a graph takes."""
    capture = DecodeBucket.capture

    def timed(bucket: DecodeBucket) -> None:
        start = time.perf_counter()
        capture(bucket)
        seconds.append(time.perf_counter() - start)

    with replaced(DecodeBucket, capture=timed):
        yield


def _resolved(
    target: TargetModel,
    drafter: DrafterSpec | None,
    device: torch.device,
    drafts: int,
    max_num_seqs: int,
    max_model_len: int,
) -> Resolved:
    """What `engine.resolve` would make of folders with these models."""
    kind: Literal["cuda", "cpu"] = "cuda" if device.type == "cuda" else "cpu"
    speculative = None
    if drafter:
        speculative = SpeculativeConfig(method="dflash", model="random", num_speculative_tokens=drafts)
    config = EngineConfig(
        model=ModelConfig(model="random", dtype="bfloat16", device=kind, max_model_len=max_model_len),
        cache=CacheConfig(),
        speculative=speculative,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=BATCHED_TOKENS,
    )
    shape = CacheShape.of(target.spec, drafter, block_size=config.cache.block_size, num_drafts=drafts)
    return Resolved(
        config, Path("random"), None, device, config.is_deterministic(device.type),
        target.spec, drafter, None, drafts, max_model_len, shape,
    )  # fmt: skip

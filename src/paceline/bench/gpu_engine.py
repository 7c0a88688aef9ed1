"""An engine over random weights, and the timing of batches that it decodes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.bench.random_model import DrafterShape, load_random_drafter
from paceline.bench.rows import rounded
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
    from paceline.engine.results import RequestOutput
    from paceline.models.base import KVPair, TargetModel
    from paceline.models.spec import DrafterSpec

Mode = Literal["plain", "dflash"]
BATCHED_TOKENS = 8192
"""Rows of a step, as the peer was given."""
WARM_TOKENS = 24
"""Enough that no sequence ends before the last one starts to decode."""
SHORTER = (1.0, 0.5, 0.25)
"""Parts of the wanted output length that are tried when time is short."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run."""

    mode: str
    path: str
    """`graph`: decode steps replay captured graphs; `eager`."""
    concurrency: int
    drafts: int
    acceptance: float
    """Tokens a verification that are asked for, by chance; unused in plain decoding."""
    prompt_tokens: int
    few: int
    many: int


@dataclass(slots=True)
class Batch:
    """One batch from its first request to its last token."""

    seconds: float = 0.0
    """Without what was spent on capturing graphs."""
    tokens: int = 0
    full_steps: list[float] = field(default_factory=list)
    """Seconds of the steps in which every sequence decoded and none read its prompt."""
    full_tokens: int = 0
    captures: list[float] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """Two batches that differ in their output length alone."""

    setting: Setting
    few: Batch
    many: Batch
    many_tokens: int
    """Output tokens a sequence of the longer batch: fewer than wanted when time was short."""
    peak_bytes: int | None

    def rate(self) -> float:
        """Aggregate decode tokens a second: the difference of the two batches."""
        return (self.many.tokens - self.few.tokens) / (self.many.seconds - self.few.seconds)

    def detail(self) -> dict[str, Any]:
        """What the rate was made of."""
        steps = self.many.full_steps
        made: dict[str, Any] = {
            "path": self.setting.path,
            "per_stream": rounded(self.rate() / self.setting.concurrency),
            "prompt_tokens": self.setting.prompt_tokens,
            "output_tokens": [self.setting.few, self.many_tokens],
            "seconds": [rounded(self.few.seconds), rounded(self.many.seconds)],
            "captures_taken_out": [len(self.few.captures), len(self.many.captures)],
            "full_batch": {
                "steps": len(steps),
                "step_ms": rounded(1e3 * median(steps)),
                "tokens_per_s": rounded(self.many.full_tokens / sum(steps)),
            },
            "peak_gib": None if self.peak_bytes is None else rounded(self.peak_bytes / 2**30),
        }
        if self.setting.mode == "dflash":
            stats = [output.speculation for output in self.many.outputs]
            windows = sum(s["num_drafts"] for s in stats)
            made["num_speculative_tokens"] = self.setting.drafts
            made["acceptance_length"] = rounded(1 + sum(s["num_accepted_tokens"] for s in stats) / windows)
            # What the luck of a run's draws does not move.
            expected = self.setting.concurrency * self.setting.acceptance * len(steps)
            made["full_batch"]["tokens_per_s_at_asked_acceptance"] = rounded(expected / sum(steps))
        return made


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
        self._open = ExitStack()
        if self.drafts:
            sampler = runner.parts.sampler
            synthetic = SyntheticAcceptance(sampler, acceptance, drafts)
            self._open.enter_context(replaced(sampler, sample=synthetic.sample))

    def setting(self, concurrency: int, prompt_tokens: int, few: int, many: int) -> Setting:
        """What `measure` takes."""
        return Setting(
            self.mode, self.path, concurrency, self.drafts, self.acceptance, prompt_tokens, few, many
        )

    def measure(self, setting: Setting, deadline: float) -> Measured | None:
        """Warm up, then time both batches; None if that would not end by `deadline` (`perf_counter`)."""
        if time.perf_counter() > deadline:
            return None
        self._batch(setting, WARM_TOKENS, seed=1, warm=True)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        few = self._batch(setting, setting.few, seed=2)
        many_tokens = self._affordable(setting, few.seconds, deadline)
        if many_tokens is None:
            return None
        many = self._batch(setting, many_tokens, seed=3)
        peak = torch.cuda.max_memory_reserved() if self.device.type == "cuda" else None
        return Measured(setting, few, many, many_tokens, peak)

    def close(self) -> None:
        """Free graphs and caches."""
        self._open.close()
        del self.parts
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _affordable(self, setting: Setting, few_seconds: float, deadline: float) -> int | None:
        """The longest output that can be expected to end in time; prompts make the estimate a high one."""
        left = deadline - time.perf_counter()
        lengths = [int(setting.many * part) for part in SHORTER]
        fitting = [n for n in lengths if n > setting.few and few_seconds * n / setting.few < left]
        return max(fitting, default=None)

    def _batch(self, setting: Setting, tokens: int, seed: int, warm: bool = False) -> Batch:
        """Run one batch of new prompts; `warm` captures all graphs that batches of this size can need."""
        engine, batch = self.parts.engine, Batch()
        prompts = random_prompts(setting.concurrency, setting.prompt_tokens, self.shape.vocab, seed)
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        with _captures(batch.captures):
            start = time.perf_counter()
            for i, prompt in enumerate(prompts):
                engine.add(Request(str(i), prompt, params, seed=i))
            while engine.has_work:
                full = self._is_full(setting.concurrency)
                if full and warm:
                    self._capture_all(setting)
                    warm = False
                before, captured = time.perf_counter(), len(batch.captures)
                events = engine.step()
                if full and len(batch.captures) == captured:
                    batch.full_steps.append(time.perf_counter() - before)
                    batch.full_tokens += sum(len(event.token_ids) for event in events)
                batch.outputs += [event.output for event in events if event.output]
            assert not warm, "never did all sequences decode at once"
            batch.seconds = time.perf_counter() - start - sum(batch.captures)
        batch.tokens = sum(len(output.token_ids) for output in batch.outputs)
        assert batch.tokens == tokens * setting.concurrency, "a sequence ended early"
        return batch

    def _is_full(self, concurrency: int) -> bool:
        running = self.parts.engine.scheduler.running
        return len(running) == concurrency and not any(s.in_prefill for s in running)

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

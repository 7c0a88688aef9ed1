"""What a GPU benchmark times, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.bench.rows import rounded

if TYPE_CHECKING:
    from paceline.engine.results import RequestOutput


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

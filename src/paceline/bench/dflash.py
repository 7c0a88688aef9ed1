"""DFlash against our own plain decoding at batch 1 over a file of prompts, and where a step's time goes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.bench.native import Native
from paceline.bench.rows import Row, from_repetitions, rounded, summary
from paceline.bench.spans import Place, Spans
from paceline.bench.workload import Prompt
from paceline.engine import runner as runner_module
from paceline.engine import step as step_module
from paceline.engine.runner import Runner
from paceline.speculate.sampler import Sampler

if TYPE_CHECKING:
    from paceline.engine.results import RequestOutput

TOKENS = 64
TARGET = 0.65
EVERYTHING = "all"


@dataclass(slots=True)
class Figures:
    """Sums over answers of one engine, one repetition, by prompt category and over everything."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of decoding: from a sequence's first token to its last."""
    tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Tokens after the first."""
    drafts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    drafted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    accepted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_position: list[int] = field(default_factory=list)

    def add(self, category: str, output: RequestOutput) -> None:
        """Count one answer."""
        speculation = output.speculation
        for key in {category, EVERYTHING}:
            self.seconds[key] += output.timing.decode_s
            self.tokens[key] += len(output.token_ids) - 1
            self.drafts[key] += speculation["num_drafts"]
            self.drafted[key] += speculation["num_draft_tokens"]
            self.accepted[key] += speculation["num_accepted_tokens"]
        found = speculation["accepted_per_position"]
        self.by_position = [a + b for a, b in zip(self.by_position or [0] * len(found), found, strict=True)]

    def rate(self, category: str = EVERYTHING) -> float:
        """Decoded tokens a second."""
        return self.tokens[category] / self.seconds[category]

    def acceptance_length(self, category: str = EVERYTHING) -> float:
        """Tokens of a verification that held a draft: 1 + accepted drafts."""
        return 1 + self.accepted[category] / max(self.drafts[category], 1)


def run(
    engines: dict[str, Native], prompts: list[Prompt], encoded: dict[str, list[int]], turn: int
) -> dict[str, Figures]:
    """All prompts once with every engine, greedy, prompt by prompt; `turn` alternates who is first."""
    figures = {name: Figures() for name in engines}
    for index, prompt in enumerate(prompts):
        names = list(engines) if (index + turn) % 2 == 0 else list(reversed(engines))
        for name in names:
            output = engines[name].generate([encoded[prompt.id]], TOKENS)[0]
            figures[name].add(prompt.category, output)
    return figures


def split(engine: Native, prompts: list[Prompt], encoded: dict[str, list[int]]) -> dict[str, Any]:
    """Milliseconds of a decode step by part, from a run of its own (the timers cost a little)."""
    parts = engine.llm.engine.runner.parts
    target = type(parts.target)
    places: dict[str, list[Place]] = {
        "verify": [(target, "forward"), (target, "logits")],
        "sample": [
            (Sampler, "sample"),
            (Sampler, "commit"),
            (step_module, "accept"),
            (runner_module, "fetch_accepted"),
        ],
    }
    if parts.proposer:
        places["draft"] = [(type(parts.proposer), "propose"), (type(parts.proposer), "observe")]
    spans, decode = Spans(), 0.0
    with spans.watching((Runner, "decode"), places):
        for prompt in prompts:
            decode += engine.generate([encoded[prompt.id]], TOKENS)[0].timing.decode_s
    steps = spans.within_calls
    times = {label: spans.seconds[label] for label in ("verify", "draft", "sample")}
    times["host"] = decode - sum(times.values())
    return {
        "steps": steps,
        "ms_per_step": {label: rounded(1e3 * seconds / steps) for label, seconds in times.items()},
        "share": {label: rounded(seconds / decode, 3) for label, seconds in times.items()},
    }


def measure(
    name: str, title: str, model: str, speculative: dict[str, Any], prompts: list[Prompt], reps: int
) -> Row:
    """The row: speed-up over acceptance length, repetition by repetition."""
    engines = {"plain": Native(model), "dflash": Native(model, speculative)}
    encoded = {prompt.id: engines["plain"].encode(prompt.text) for prompt in prompts}
    run(engines, prompts[:3], encoded, 0)
    rounds = [run(engines, prompts, encoded, turn) for turn in range(reps)]
    ratios = [
        figures["dflash"].rate() / figures["plain"].rate() / figures["dflash"].acceptance_length()
        for figures in rounds
    ]
    detail = {
        "batch": 1,
        "prompts": len(prompts),
        "answer_tokens": TOKENS,
        "temperature": 0.0,
        **_speed(rounds),
        **_acceptance(engines["dflash"], rounds[-1]["dflash"]),
        "categories": _categories(rounds),
        "split": {side: split(engine, prompts, encoded) for side, engine in engines.items()},
    }
    return from_repetitions(name, title, ratios, TARGET, ">=", detail)


def _speed(rounds: list[dict[str, Figures]]) -> dict[str, Any]:
    speedups = [figures["dflash"].rate() / figures["plain"].rate() for figures in rounds]
    return {
        "tokens_per_s": {side: summary([f[side].rate() for f in rounds]) for side in ("plain", "dflash")},
        "speedup": summary(speedups),
    }


def _acceptance(engine: Native, figures: Figures) -> dict[str, Any]:
    """Acceptance is the same in every repetition: greedy, deterministic."""
    drafts, drafted = figures.drafts[EVERYTHING], figures.drafted[EVERYTHING]
    return {
        "num_speculative_tokens": engine.llm.plan()["speculation"]["num_speculative_tokens"],
        "acceptance_length": rounded(figures.acceptance_length()),
        "draft_acceptance_rate": rounded(figures.accepted[EVERYTHING] / max(drafted, 1)),
        "acceptance_by_position": [rounded(count / max(drafts, 1)) for count in figures.by_position],
        "verifications": drafts,
    }


def _categories(rounds: list[dict[str, Figures]]) -> dict[str, Any]:
    last = rounds[-1]
    names = [name for name in last["plain"].tokens if name != EVERYTHING]
    return {
        name: {
            "speedup": rounded(median(f["dflash"].rate(name) / f["plain"].rate(name) for f in rounds)),
            "acceptance_length": rounded(last["dflash"].acceptance_length(name)),
        }
        for name in sorted(names)
    }

"""What a verification of 8 rows costs beside one of 1 row, both as `generate` runs them, at batch 1.

The drafts come from the known continuation, agreeing for 0, 1, ... 7 tokens in turn, so that as many rows are
replayed onto the state as in real decoding. Drafting is not part of a verification and is taken out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from paceline.bench.native import Native
from paceline.bench.plain import PROMPT_TOKENS
from paceline.bench.rows import Row, from_repetitions, interleave, rounded, summary
from paceline.bench.spans import replaced
from paceline.bench.workload import random_prompts
from paceline.engine.runner import Runner
from paceline.speculate.base import Drafts

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.speculate.base import DraftRequest

ROWS = 8
TOKENS = 96
TARGET = 1.25


@dataclass(slots=True)
class StepClock:
    """Seconds of every decode step without its drafting, by the number of rows of the step."""

    steps: list[tuple[int, float]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the steps of every engine of this process until the block ends."""
        decode, draft = Runner.decode, Runner._draft
        drafted: list[tuple[int, float]] = []

        def timed_draft(runner: Runner, windows: Any, anchors: Any) -> Drafts:
            start = time.perf_counter()
            drafts = draft(runner, windows, anchors)
            drafted.append((sum(drafts.counts), time.perf_counter() - start))
            return drafts

        def timed_decode(runner: Runner, windows: Any) -> Any:
            start = time.perf_counter()
            emissions = decode(runner, windows)
            taken = time.perf_counter() - start
            count, drafting = drafted.pop()
            self.steps.append((len(windows) + count, taken - drafting))
            return emissions

        with replaced(Runner, decode=timed_decode, _draft=timed_draft):
            yield

    def median(self, rows: int) -> float:
        """Median seconds of the steps that had `rows` rows."""
        times = [seconds for count, seconds in self.steps if count == rows]
        assert times, f"no step had {rows} rows"
        return median(times)


class KnownDrafts:
    """Drafts from a known text: of a window the first 0, 1, ... n tokens are right, the next is wrong."""

    def __init__(self, text: list[int], vocab: int):
        self.text, self.vocab = text, vocab
        self.turn = 0

    def propose(self, request: DraftRequest) -> Drafts:
        """As `Proposer.propose`, for one sequence."""
        assert request.histories is not None and len(request.histories) == 1
        done, limit = len(request.histories[0]), request.limits[0]
        drafts = (self.text[done : done + limit] + [0] * limit)[:limit]
        right = self.turn % (limit + 1)
        self.turn += 1
        if right < limit:
            drafts[right] = (drafts[right] + 1) % self.vocab
        return Drafts(torch.tensor([drafts], dtype=torch.int64), [limit])


class WindowContest:
    """Two engines on the same weights: one decodes plainly, one verifies windows of 8 rows."""

    def __init__(self, model: str | Path):
        n = ROWS - 1
        lookup = {"method": "ngram", "num_speculative_tokens": n}
        self.plain, self.windowed = Native(model), Native(model, lookup)
        self.parts = self.windowed.llm.engine.runner.parts
        self.vocab = self.parts.target.spec.vocab_size
        self.prompt = random_prompts(1, PROMPT_TOKENS, self.vocab)[0]
        self.answer = list(self.plain.generate([self.prompt], TOKENS + n + 1)[0].token_ids)

    def one_row(self) -> float:
        """Median seconds of a step of plain decoding."""
        return self._steps(self.plain, 1, TOKENS)

    def eight_rows(self) -> float:
        """Median seconds of a verification of 8 rows."""
        known = KnownDrafts(self.prompt + self.answer, self.vocab)
        with replaced(self.parts.proposer, propose=known.propose):
            return self._steps(self.windowed, ROWS, TOKENS)

    def _steps(self, engine: Native, rows: int, tokens: int) -> float:
        clock = StepClock()
        with clock.running():
            output = engine.generate([self.prompt], tokens)[0]
        assert list(output.token_ids) == self.answer[:tokens], "the windowed text left the plain one"
        return clock.median(rows)


def measure(name: str, title: str, model: str | Path, reps: int) -> Row:
    """The row, before it is known whether plain decoding reaches its own rows (see `goals.gated`)."""
    contest = WindowContest(model)
    contest.one_row(), contest.eight_rows()
    one, eight = interleave(reps, [contest.one_row, contest.eight_rows])
    ratios = [b / a for a, b in zip(one, eight, strict=True)]
    detail = {
        "batch": 1,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": TOKENS,
        "accepted_drafts": "0 to 7 in turn",
        "step_ms": {"1 row": summary([1e3 * t for t in one]), "8 rows": summary([1e3 * t for t in eight])},
        "cost_of_a_further_row": rounded((median(ratios) - 1) / (ROWS - 1)),
    }
    return from_repetitions(name, title, ratios, TARGET, "<=", detail)

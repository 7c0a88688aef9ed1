"""The CPU figures: what measures each row, and in which order.

Nothing else runs beside what is timed: a peer in another process is waited for until it has loaded and
compiled, is stopped, runs in its turns only, and is gone before the rows that do not need it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.bench import dflash, identity, machine, plain, rollback, window
from paceline.bench.goals import (
    GOALS,
    TRANSFORMERS_ROWS,
    VLLM_ROWS,
    WINDOW_ROWS,
    absent,
    describe,
    enough,
    gated,
)
from paceline.bench.native import Native
from paceline.bench.peers.base import Engine, NotMeasured
from paceline.bench.peers.plain_form import plain_form
from paceline.bench.peers.transformers import TransformersPeer
from paceline.bench.peers.vllm import VllmPeer
from paceline.bench.rows import Row, write
from paceline.bench.shapes import HYBRID_76M, cached_model
from paceline.bench.workload import Prompt, cut_prompts, random_prompts
from paceline.errors import PacelineError
from paceline.models.hub import resolve_model

SETTLE_S = 3.0  # threads of earlier work stop spinning, a stopped peer's memory traffic ends


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked for."""

    out: Path
    model: str
    """The trained model: a folder or `demo`."""
    drafter: str
    draft_tokens: int | None
    """Drafts a verification in the DFlash row; None: as many as the drafter's block holds."""
    prompts: list[Prompt]
    reps: int
    only: tuple[str, ...]
    """Parts of row names; empty: every row."""
    vllm_python: str | None


@dataclass(slots=True)
class Suite:
    """One run: its options, its machine, and the rows so far."""

    options: Options
    env: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def run(self) -> list[Row]:
        """Measure everything that was asked for; the output file grows with every section."""
        self.env = machine.environment()
        self._section(["rollback_share_27b_n10"], self._rollback)
        self._section(VLLM_ROWS, self._against_vllm)
        self._section(TRANSFORMERS_ROWS, self._against_transformers)
        self._section(WINDOW_ROWS, self._windows)
        self._section(["dflash_vs_plain_b1"], self._dflash)
        self._section(["text_identical"], self._identity)
        self.rows = gated({name: enough(row) for name, row in self.rows.items()})
        self._save()
        return self._ordered()

    def _ordered(self) -> list[Row]:
        return [self.rows[name] for name in GOALS if name in self.rows]

    def _save(self) -> None:
        write(self.options.out, self._ordered(), self.env)

    def _wanted(self, names: Sequence[str]) -> list[str]:
        only = self.options.only
        return [name for name in names if not only or any(part in name for part in only)]

    def _section(self, names: Sequence[str], work: Callable[[], Iterator[Row]]) -> None:
        """Run what measures `names`; what it cannot measure is null, with the reason."""
        wanted = self._wanted(names)
        if not wanted:
            return
        began, load = time.perf_counter(), machine.load()
        say(f"{', '.join(wanted)} (load average {load[0]})")
        reason = "it was not measured"
        try:
            for row in work():
                self.rows[row.name] = replace(row, detail={**row.detail, "load_average_before": load})
        except (NotMeasured, PacelineError) as error:
            reason = str(error)
        for name in wanted:
            self.rows.setdefault(name, absent(name, reason))
            say(f"  {describe(self.rows[name])}")
        say(f"  {time.perf_counter() - began:.0f} s")
        self._save()

    def _rollback(self) -> Iterator[Row]:
        yield rollback.measure("rollback_share_27b_n10", GOALS["rollback_share_27b_n10"].title)

    def _identity(self) -> Iterator[Row]:
        methods: dict[str, dict[str, Any]] = {
            "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            "mtp": {"method": "mtp"},
            "dflash": {"method": "dflash", "model": self.options.drafter},
        }
        title = GOALS["text_identical"].title
        yield identity.measure("text_identical", title, self.options.model, self._prompts(), methods)

    def _against_vllm(self) -> Iterator[Row]:
        model = cached_model(HYBRID_76M)
        peer = VllmPeer.start(self.options.vllm_python, model)
        with closing(peer):
            say("  waiting for vLLM to load and compile")
            peer.wait_ready()
            say(f"  vLLM's thread binding: {peer.environment()['thread_binding']}")
            prompts = [random_prompts(batch, plain.PROMPT_TOKENS, HYBRID_76M.vocab) for batch in (1, 4, 16)]
            yield from self._contests(VLLM_ROWS, Native(model), peer, prompts, HYBRID_76M.step_bytes())

    def _against_transformers(self) -> Iterator[Row]:
        ours = Native(self.options.model)
        with TemporaryDirectory(prefix="paceline-bench-") as folder:
            peer = TransformersPeer(plain_form(resolve_model(self.options.model), Path(folder)))
            encoded = [ours.encode(prompt.text) for prompt in self.options.prompts] or [[*range(1, 65)]]
            prompts = [cut_prompts(encoded, batch, plain.PROMPT_TOKENS) for batch in (1, 16)]
            yield from self._contests(TRANSFORMERS_ROWS, ours, peer, prompts)

    def _contests(
        self,
        names: Sequence[str],
        ours: Engine,
        peer: Engine,
        prompts: Sequence[list[list[int]]],
        step_bytes: int | None = None,
    ) -> Iterator[Row]:
        time.sleep(SETTLE_S)
        for name, batch in zip(names, prompts, strict=True):
            if self._wanted([name]):
                contest = plain.Contest(name, GOALS[name].title, batch, GOALS[name].target)
                yield plain.compare(ours, peer, contest, self.options.reps, step_bytes)

    def _windows(self) -> Iterator[Row]:
        models = (str(cached_model(HYBRID_76M)), self.options.model)
        for name, model in zip(WINDOW_ROWS, models, strict=True):
            if self._wanted([name]):
                yield window.measure(name, GOALS[name].title, model, self.options.reps)

    def _dflash(self) -> Iterator[Row]:
        title, options = GOALS["dflash_vs_plain_b1"].title, self.options
        drafter: dict[str, Any] = {"method": "dflash", "model": options.drafter}
        if options.draft_tokens:
            drafter["num_speculative_tokens"] = options.draft_tokens
        yield dflash.measure(
            "dflash_vs_plain_b1", title, options.model, drafter, self._prompts(), options.reps
        )

    def _prompts(self) -> list[Prompt]:
        if not self.options.prompts:
            raise NotMeasured("no prompts file was given (--prompts)")
        return self.options.prompts


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)

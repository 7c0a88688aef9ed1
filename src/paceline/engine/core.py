"""The engine's loop: schedule, run, commit, report.

One thread drives an engine. `step` runs one planned step and returns what is new; nothing happens between
steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.engine.results import (
    CompletionOutput,
    RequestOutput,
    SpeculationStats,
    StreamEvent,
    Timing,
    Usage,
)
from paceline.errors import PacelineError, RequestError

if TYPE_CHECKING:
    from paceline.engine.grammar import Grammars
    from paceline.engine.output import Delta, OutputProcessor
    from paceline.engine.plan import StepPlan
    from paceline.engine.request import Request
    from paceline.engine.runner import Emission, Runner
    from paceline.engine.sampler_rows import SamplerRows
    from paceline.engine.scheduler import Scheduler
    from paceline.engine.sequence import Sequence


@dataclass(slots=True)
class _Choice:
    """What the engine keeps beside a sequence until its request is done."""

    request: Request
    sequence: Sequence
    output: OutputProcessor
    stats: SpeculationStats
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    result: CompletionOutput | None = None


@dataclass(slots=True)
class _Open:
    """A request whose choices are not all done."""

    request: Request
    choices: list[_Choice] = field(default_factory=list)


class Engine:
    """Runs requests to their end; every sequence of the process goes through one engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        make_output: Callable[[Request], OutputProcessor],
        rows: SamplerRows,
        method: str | None,
        num_speculative_tokens: int,
        grammars: Grammars | None = None,
    ):
        """`grammars` makes answers of a given form; None: the model has no tokenizer to do that with."""
        self.scheduler, self.runner = scheduler, runner
        self._make_output, self._rows = make_output, rows
        self._method, self._num_drafts = method, num_speculative_tokens
        self._choices: dict[Sequence, _Choice] = {}
        self._grammars = grammars
        self._open: dict[str, _Open] = {}
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._open)

    def add(self, request: Request) -> None:
        """Queue a request; raises `RequestError` or `CapacityError` if it can never run."""
        assert request.id not in self._open, f"request {request.id!r} is already running"
        opened, queued = _Open(request), []
        try:
            for sequence in request.sequences():
                self._rows.check(sequence)
                if request.structure:
                    if self._grammars is None:
                        raise RequestError("a form needs a tokenizer", param=request.structure.param)
                    sequence.grammar = self._grammars.start(request.structure)
                self.scheduler.add(sequence)
                queued.append(sequence)
                stats = SpeculationStats(self._method, self._num_drafts)
                opened.choices.append(_Choice(request, sequence, self._make_output(request), stats))
        except PacelineError:
            for sequence in queued:
                self.scheduler.finish(sequence)
            raise
        self._open[request.id] = opened
        self._choices.update({choice.sequence: choice for choice in opened.choices})

    def abort(self, request_id: str) -> list[StreamEvent]:
        """End a request wherever it is; its blocks and slots are free at once. Unknown ids are ignored."""
        opened = self._open.get(request_id)
        if opened is None:
            return []
        pending = [choice for choice in opened.choices if choice.result is None]
        return [self._finish(choice, choice.output.abort()) for choice in pending]

    def step(self) -> list[StreamEvent]:
        """Plan and run one step; returns news of every sequence that got tokens, ended or failed."""
        plan = self.scheduler.schedule()
        events = [event for failure in plan.failed for event in self._fail(failure.sequence, failure.error)]
        self.num_preemptions += len(plan.preempted)
        self._admit(plan)
        # A failed request takes its other choices with it, which the plan still holds.
        chunks = [chunk for chunk in plan.prefill if chunk.sequence in self._choices]
        windows = [window for window in plan.windows if window.sequence in self._choices]
        if chunks:
            first = {emission.sequence: emission for emission in self.runner.prefill(chunks)}
            for chunk in chunks:
                emission = first.get(chunk.sequence) if chunk.completes else None
                chunk.sequence.commit_prompt(chunk.count, emission.tokens[0] if emission else None)
                if emission:
                    events += self._take(emission)
        if windows:
            events += [event for emission in self.runner.decode(windows) for event in self._take(emission)]
        return events

    def _admit(self, plan: StepPlan) -> None:
        for sequence in plan.admitted:
            if sequence not in self._choices:
                continue
            self._choices[sequence].admitted = time.perf_counter()
            self._rows.open(sequence)
            if self.runner.prefix:
                self.runner.prefix.resume(sequence)
        for sequence in plan.restored:
            if self.runner.prefix and sequence in self._choices:
                self.runner.prefix.moved(sequence)

    def _take(self, emission: Emission) -> list[StreamEvent]:
        """Commit what a sequence emitted, up to the token that ends it."""
        choice = self._choices.get(emission.sequence)
        if choice is None:  # another choice of its request has failed in this step
            return []
        sequence, now = emission.sequence, time.perf_counter()
        is_first = choice.first_token is None
        delta = choice.output.push(emission.tokens, emission.logprobs)
        if is_first:
            choice.first_token = now
        else:
            choice.stats.record(emission.drafted, len(emission.tokens) - 1, len(delta.token_ids))
            sequence.commit(delta.token_ids)
            if self.runner.prefix:
                self.runner.prefix.after_window(sequence, emission.hidden)
        if sequence.grammar and not sequence.grammar.advance(delta.token_ids):
            return self._fail(sequence, RequestError("no token of this model can go on with the wanted form"))
        choice.last_token = now
        if delta.finish_reason:
            return [self._finish(choice, delta, emission)]
        return [self._event(choice, delta, emission)]

    def _finish(self, choice: _Choice, delta: Delta, emission: Emission | None = None) -> StreamEvent:
        """Free what the sequence holds, and close the request with its last choice."""
        sequence = choice.sequence
        self._release(sequence)
        choice.result = _completion(choice)
        opened = self._open[sequence.request_id]
        output = None
        if all(c.result is not None for c in opened.choices):
            output = _request_output(opened)
            del self._open[sequence.request_id]
        return self._event(choice, delta, emission, output)

    def _event(
        self,
        choice: _Choice,
        delta: Delta,
        emission: Emission | None,
        output: RequestOutput | None = None,
    ) -> StreamEvent:
        """What a delta says; `emission` is the step that gave its tokens, None for an abort."""
        agreed = len(emission.tokens) - 1 if emission else 0
        return StreamEvent(
            choice.sequence.request_id,
            choice.sequence.index,
            delta.text,
            delta.token_ids,
            delta.finish_reason,
            output,
            logprobs=delta.logprobs,
            drafted=emission.drafted if emission else 0,
            accepted=min(agreed, len(delta.token_ids)),
            stop_reason=delta.stop_reason,
            cached_tokens=choice.sequence.cached_tokens,
        )

    def _fail(self, sequence: Sequence, error: PacelineError) -> list[StreamEvent]:
        """Report a sequence that the scheduler gave up; the request's other choices end with it."""
        opened = self._open.pop(sequence.request_id, None)
        if opened is None:  # another choice of the request failed in the same step
            return []
        for choice in opened.choices:
            self._release(choice.sequence)
        return [StreamEvent(sequence.request_id, sequence.index, "", [], "error", None, error)]

    def _release(self, sequence: Sequence) -> None:
        self._rows.close(sequence)
        self.scheduler.finish(sequence)
        if self.runner.prefix:
            self.runner.prefix.forget(sequence)
        self._choices.pop(sequence, None)


def _completion(choice: _Choice) -> CompletionOutput:
    output, now = choice.output, time.perf_counter()
    count = len(output.token_ids)
    first, last = choice.first_token or now, choice.last_token or now
    decode = last - first
    admitted = choice.admitted or first
    assert output.finish_reason is not None
    return CompletionOutput(
        index=choice.sequence.index,
        text=output.text,
        token_ids=list(output.token_ids),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        usage=Usage(len(choice.request.prompt_ids), count),
        stats=choice.stats,
        timing=Timing(first - admitted, decode, (count - 1) / decode if decode > 0 else None),
        logprobs=list(output.logprobs) if choice.request.params.logprobs is not None else None,
    )


def _request_output(opened: _Open) -> RequestOutput:
    results = [choice.result for choice in opened.choices]
    return RequestOutput(
        opened.request.id,
        opened.request.prompt_ids,
        opened.request.seed,
        [result for result in results if result is not None],
    )

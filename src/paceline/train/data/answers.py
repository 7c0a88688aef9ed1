"""The target's own answers: a list of jobs goes through the engine in large batches, in order.

Every answer has a key of its own, from which its noise is drawn, so that an answer does not depend on which
others are written beside it: a run that was stopped and goes on gives what it would have given. (Exactly so
in deterministic mode; without it a batch of another size may round differently.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from paceline.config.sampling import SamplingParams
from paceline.engine.request import Request, check_prompt
from paceline.errors import PacelineError, RequestError
from paceline.kernels.sample import prompt_key
from paceline.train.data.shards import Sample

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from paceline.engine.assemble import Assembled
    from paceline.engine.results import StreamEvent
    from paceline.train.data.prompts import Prompt, PromptEncoder
    from paceline.train.settings.data import AnswerSettings

BURST = 16
"""Answers begin together, as soon as one in so many places is free: a prompt that is read by itself costs
nearly as much time as many at once, while a few empty places cost almost none."""
AHEAD = 32
"""Answers that may be finished before an earlier one is, times max_num_seqs; they wait in memory."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to be written."""

    id: str
    category: str | None
    thinking: bool
    params: SamplingParams
    prompt_ids: list[int]
    error: RequestError | None = None
    """Why it cannot even be asked: the chat template refuses the messages."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A job that is done: with a sample, or with the error that kept it from being answered."""

    job: Job
    sample: Sample | None
    error: PacelineError | None = None


class Writer(Protocol):
    """Whatever writes answers: the engine (`Answers`), or rollouts (`rollout_answers`)."""

    tokens: int
    """Written so far."""
    finished: int
    """Answers so far."""

    @property
    def seconds(self) -> float:
        """Since the start."""
        ...

    def run(self, todo: Iterator[Job]) -> Generator[Answer | None]:
        """Answers to the jobs; None where time has passed without one."""
        ...


def params_of(settings: AnswerSettings) -> list[tuple[str, SamplingParams]]:
    """Every way in which a prompt is answered, with the end of its answer's name."""
    ways = []
    for temperature in settings.temperatures:
        params = SamplingParams(
            temperature=temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )
        ways += [(f"t{temperature:g}/{i}", params) for i in range(1 if params.greedy else settings.n)]
    return ways


def jobs(
    prompts: Iterable[Prompt],
    encoder: PromptEncoder,
    ways: list[tuple[str, SamplingParams]],
    done: Container[str],
) -> Iterator[Job]:
    """The answers that are still to be written, prompt after prompt; `done` names those that are not."""
    for prompt in prompts:
        for thinking in encoder.modes_of(prompt):
            begin = f"{prompt.key}/{'think' if thinking else 'plain'}/"
            wanted = [(begin + end, params) for end, params in ways if begin + end not in done]
            if not wanted:
                continue
            ids, refusal = list[int](), None
            try:
                ids = encoder.encode(prompt, thinking)
            except RequestError as error:
                refusal = error
            for name, params in wanted:
                yield Job(name, prompt.category, thinking, params, ids, refusal)


class Answers:
    """Runs jobs through an engine that has nothing else to do.

    `tokens` counts what was written, `seconds` the time since the start, `finished` the answers.
    """

    def __init__(self, parts: Assembled) -> None:
        assert not parts.engine.has_work, "answers need an engine of their own"
        self._engine, self._resolved = parts.engine, parts.resolved
        self._width = parts.resolved.config.max_num_seqs
        self._open: dict[str, Job] = {}
        self.tokens = self.finished = 0
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._begun

    def run(self, todo: Iterator[Job]) -> Generator[Answer | None]:
        """Answers in the order of the jobs; None after a step of the engine that ended none of them.

        Takes jobs only as fast as they are answered. Closing the iterator aborts what is unfinished.
        """
        order: deque[str] = deque()
        ready: dict[str, Answer] = {}
        more = True
        try:
            while more or order:
                if more and self._width - len(self._open) >= max(1, self._width // BURST):
                    more = self._fill(todo, order, ready)
                ready.update((answer.job.id, answer) for answer in self._step())
                if not order or order[0] not in ready:
                    yield None
                while order and order[0] in ready:
                    yield ready.pop(order.popleft())
        finally:
            for name in list(self._open):
                self._engine.abort(name)
            self._open.clear()

    def _fill(self, todo: Iterator[Job], order: deque[str], ready: dict[str, Answer]) -> bool:
        """Begin jobs in all free places; False when there are no more."""
        while len(self._open) < self._width and len(order) < AHEAD * self._width:
            job = next(todo, None)
            if job is None:
                return False
            order.append(job.id)
            refused = self._add(job)
            if refused is not None:
                ready[job.id] = refused
        return True

    def _add(self, job: Job) -> Answer | None:
        """Queue a job; an answer at once where it can never be served."""
        if job.error is not None:
            return Answer(job, None, job.error)
        seed = job.params.seed
        assert seed is not None
        request = Request(job.id, job.prompt_ids, job.params, prompt_key(seed, job.id) % 2**64)
        try:
            check_prompt(job.prompt_ids, self._resolved.spec.vocab_size, self._resolved.max_model_len)
            self._engine.add(request)
        except PacelineError as error:
            return Answer(job, None, error)
        self._open[job.id] = job
        return None

    def _step(self) -> Iterator[Answer]:
        for event in self._engine.step() if self._open else ():
            self.tokens += len(event.token_ids)
            if event.output is not None or event.error is not None:
                self.finished += 1
                yield _answer(self._open.pop(event.id), event)


def _answer(job: Job, event: StreamEvent) -> Answer:
    if event.output is None:
        return Answer(job, None, event.error)
    choice = event.output.outputs[0]
    finish: Literal["stop", "length"] = "length" if choice.finish_reason == "length" else "stop"
    return Answer(job, Sample(job.id, job.category, job.thinking, job.prompt_ids, choice.token_ids, finish))

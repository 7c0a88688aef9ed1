"""Answers by rollouts: the same jobs and samples as through the engine, at the pace of one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Literal

import torch

from paceline.errors import RequestError
from paceline.train.data.answers import Answer, Job
from paceline.train.data.rollout import Prompt, Rollout
from paceline.train.data.shards import Sample

if TYPE_CHECKING:
    from paceline.train.modules.base import TrainTarget
    from paceline.train.settings.data import AnswerSettings, RolloutSettings


class RolloutAnswers:
    """Writes answers in the order in which they finish; see `answers.Writer`.

    A prompt that does not fit beside its answer in `length` positions is an error of its own, as in the
    engine.
    """

    def __init__(
        self,
        target: TrainTarget,
        settings: RolloutSettings,
        sampling: AnswerSettings,
        length: int,
        vocab: int,
    ) -> None:
        """length: positions of a prompt and its answer; vocab: ids that the tokenizer names."""
        if target.head_weight.is_cuda:
            target.compile_decode()
        self._settings, self._seed, self._length = settings, sampling.seed, length
        stops = target.eos_ids
        self._rollout = Rollout(
            target, settings.slots, length, stop_ids=stops, vocab=vocab, min_p=sampling.min_p
        )
        self._refused: list[Answer] = []
        self.tokens = self.finished = 0
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._begun

    def run(self, todo: Iterator[Job]) -> Generator[Answer | None]:
        """Answers to the jobs."""
        open_jobs: dict[int, Job] = {}
        torch.manual_seed(self._seed)
        for answer in self._rollout.run(self._prompts(todo, open_jobs), seconds=self._settings.seconds):
            yield from self._take_refused()
            job = open_jobs.pop(answer.prompt.key)
            self.tokens += len(answer.ids)
            self.finished += 1
            finish: Literal["stop", "length"] = "stop" if answer.stopped else "length"
            sample = Sample(job.id, job.category, job.thinking, job.prompt_ids, list(answer.ids), finish)
            yield Answer(job, sample)
        yield from self._take_refused()

    def _prompts(self, todo: Iterator[Job], open_jobs: dict[int, Job]) -> Iterator[Prompt]:
        for number, job in enumerate(todo):
            error = job.error or self._misfit(job)
            if error is not None:
                self._refused.append(Answer(job, None, error))
                continue
            open_jobs[number] = job
            limit = job.params.max_tokens
            assert limit is not None
            yield Prompt(number, tuple(job.prompt_ids), job.params.temperature, limit)

    def _misfit(self, job: Job) -> RequestError | None:
        count = len(job.prompt_ids)
        if 2 <= count < self._length:
            return None
        return RequestError(
            f"the prompt has {count} tokens; a rollout takes 2 to {self._length - 1} (engine.max_model_len)",
            param="prompt",
        )

    def _take_refused(self) -> Iterator[Answer]:
        while self._refused:
            yield self._refused.pop()

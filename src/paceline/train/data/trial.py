"""A trial for `--plan`: the first answers are written for a while and thrown away, and their pace is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.train.data.answers import Job, Writer
from paceline.train.data.produce import duration

TRIAL_SECONDS = 20.0
"""How long a trial lasts at most."""
WARM_UP_SECONDS = 5.0
"""The first part of that, which says nothing about the pace."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial has shown."""

    seconds: float
    tokens: int
    finished: int
    """Answers that came to their end."""
    tokens_per_second: float
    """After the warm-up; 0 where nothing was written."""

    def mean_tokens(self, limit: int) -> float:
        """Tokens of an answer that ends at `limit` at the latest.

        Answers that the clock cut off count with the tokens that they have: tokens over ends is the likeliest
        mean length of lengths that follow a geometric distribution.
        """
        return min(limit, self.tokens / self.finished) if self.finished else limit

    def estimate(self, limit: int, tokens: float) -> dict[str, Any]:
        """What `tokens` take at this pace, as `--plan` shows it. limit: where the trial's answers ended."""
        seconds = tokens / self.tokens_per_second if self.tokens_per_second else None
        return {
            "trial_seconds": round(self.seconds, 2),
            "trial_answers": self.finished,
            "tokens_per_second": round(self.tokens_per_second, 1),
            "mean_answer_tokens": round(self.mean_tokens(limit), 1),
            "seconds": None if seconds is None else round(seconds, 1),
            "text": "unknown" if seconds is None else f"about {duration(seconds)}",
        }


def run_trial(answers: Writer, todo: Iterator[Job]) -> Trial:
    """Answer `todo` for at most `TRIAL_SECONDS`."""
    running = answers.run(todo)
    warm = 0.0, 0  # seconds and tokens by the end of the warm-up, in which a GPU captures its steps
    for _ in running:
        if not warm[1] and WARM_UP_SECONDS < answers.seconds < TRIAL_SECONDS / 2:
            warm = answers.seconds, answers.tokens
        if answers.seconds > TRIAL_SECONDS:
            break
    else:
        warm = 0.0, 0  # all is written: there is nothing left to be extrapolated
    running.close()
    seconds, tokens = answers.seconds, answers.tokens
    return Trial(seconds, tokens, answers.finished, (tokens - warm[1]) / (seconds - warm[0]))

"""Counts what a request's events say: usage and speculation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paceline.engine.results import SpeculationStats

if TYPE_CHECKING:
    from paceline.engine.messages import EngineInfo
    from paceline.engine.request import Request
    from paceline.engine.results import StreamEvent


class Tally:
    """Everything countable of one answer, which may have several prompts and choices."""

    def __init__(self, requests: list[Request], info: EngineInfo):
        self.seeds = [request.seed for request in requests]
        self.prompt_tokens = sum(len(request.prompt_ids) for request in requests)
        self.completion_tokens = 0
        self.started = time.perf_counter()
        self.first: float | None = None
        self.last: float | None = None
        self._stats = SpeculationStats(info.method, info.num_drafts)
        self._begun: set[tuple[str, int]] = set()
        self._cached = 0

    def take(self, event: StreamEvent) -> None:
        """Count one event."""
        if not event.token_ids:
            return
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.completion_tokens += len(event.token_ids)
        if (event.id, event.index) in self._begun:
            self._stats.record(event.drafted, event.accepted, len(event.token_ids))
        else:  # the first token comes of the prompt, not of a verification
            self._begun.add((event.id, event.index))
            if event.index == 0:  # a prompt counts once, however many choices read it
                self._cached += event.cached_tokens

    def usage(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def paceline(self) -> dict[str, Any]:
        """The `paceline` object: the keys of `speculation` are those of `generate --json`."""
        of_verifications = self.completion_tokens - len(self._begun)
        speculation = self._stats.to_json(1 + of_verifications)
        return {
            "speculation": speculation,
            "seed": self.seeds[0] if len(self.seeds) == 1 else self.seeds,
        }

"""How long steps take, with the device waited for and everything but steps left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.train.loop.distributed import Place, from_first
from paceline.train.loop.schedule import PACE_STEPS, steps_in

_SHARE = 0.1
"""Of the seconds of a run: measuring its pace takes no longer."""


class Pace:
    """A stop watch over steps. The first step after `start` may compile and is not counted."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.start(0)

    def start(self, done: int) -> None:
        """Counting begins after the next step; `done` steps lie behind."""
        self._first, self._began = done + 1, time.perf_counter()
        self._window_step, self._window_time = self._first, self._began

    def after_step(self, done: int) -> None:
        """Call after each step."""
        if done == self._first:
            self._settle()
            self._began = self._window_time = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens within is no step."""
        self._settle()
        begin = time.perf_counter()
        yield
        spent = time.perf_counter() - begin
        self._began += spent
        self._window_time += spent

    def window(self, done: int) -> tuple[int, float]:
        """Steps and seconds since the last call; call it when the device has been waited for."""
        now = time.perf_counter()
        steps, seconds = done - self._window_step, now - self._window_time
        self._window_step, self._window_time = done, now
        return steps, seconds

    def total_steps(self, done: int, seconds: float) -> int | None:
        """Steps of a run of `seconds`; None until enough are measured. Waits for the device."""
        counted = done - self._first
        if counted < 1:
            return None
        self._settle()
        spent = from_first(time.perf_counter() - self._began, self.place)
        if done < PACE_STEPS and spent < seconds * _SHARE:
            return None
        return steps_in(seconds, spent / counted, done, spent)

    def _settle(self) -> None:
        if self.place.device.type == "cuda":
            torch.cuda.synchronize(self.place.device)

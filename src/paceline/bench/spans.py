"""Where the time of decode steps goes: wraps functions from outside, so that the engine carries no timers.

Labels are exclusive: while a labelled call runs, labelled calls inside it count for the outer one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

Place = tuple[Any, str]
"""A class or module and the name of a function in it."""


@contextmanager
def replaced(owner: Any, **functions: Any) -> Iterator[None]:
    """Attributes of `owner` (a class, a module or an object) exchanged until the block ends."""
    before = {name: vars(owner).get(name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            if function is None:  # it was inherited: take ours away again
                delattr(owner, name)
            else:
                setattr(owner, name, function)


@dataclass(slots=True)
class Spans:
    """Seconds and calls by label, counted only within calls of one function, on one thread."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    within_seconds: float = 0.0
    """Of all calls of the enclosing function."""
    within_calls: int = 0
    _open: str | None = "outside"

    @contextmanager
    def watching(self, within: Place, places: dict[str, list[Place]]) -> Iterator[None]:
        """Count calls of the functions at `places` (by label) inside calls of `within`, for this block."""
        with _all_replaced([(within, self._enclosing), *self._counters(places)]):
            yield

    def _counters(self, places: dict[str, list[Place]]) -> Iterator[tuple[Place, Callable[..., Any]]]:
        for label, entries in places.items():
            for place in entries:
                yield place, lambda function, label=label: self._counted(label, function)

    def _enclosing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._open = None
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.within_seconds += time.perf_counter() - start
                self.within_calls += 1
                self._open = "outside"

        return call

    def _counted(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._open is not None:
                return function(*args, **kwargs)
            self._open = label
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[label] += time.perf_counter() - start
                self.calls[label] += 1
                self._open = None

        return call


@contextmanager
def _all_replaced(wrappers: list[tuple[Place, Callable[..., Any]]]) -> Iterator[None]:
    """Every place's function exchanged for what its wrapper makes of it."""
    if not wrappers:
        yield
        return
    ((owner, name), wrap), *others = wrappers
    with replaced(owner, **{name: wrap(getattr(owner, name))}), _all_replaced(others):
        yield

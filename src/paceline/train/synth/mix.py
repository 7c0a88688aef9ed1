"""Weighted mixes of the generators."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import accumulate, count
from types import MappingProxyType

from paceline.errors import ConfigError
from paceline.train.synth.arithmetic import arithmetic
from paceline.train.synth.chat import chat
from paceline.train.synth.code import code
from paceline.train.synth.dialogue import Dialogue, Generator, Split
from paceline.train.synth.extraction import extraction
from paceline.train.synth.thinking import thinking
from paceline.train.synth.tools import tools
from paceline.train.synth.word_problems import word_problem

GENERATORS: Mapping[str, Generator] = MappingProxyType({
    "arithmetic": arithmetic,
    "math": word_problem,
    "extraction": extraction,
    "tools": tools,
    "thinking": thinking,
    "code": code,
    "chat": chat,
})  # fmt: skip
"""Generators by name. `prose.Continuations(texts)` and others are given to a mix as `extra`."""
WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"arithmetic": 3, "math": 2, "extraction": 2.5, "tools": 3, "thinking": 2.5, "code": 2, "chat": 0.7}
)
"""A mix to begin with: columns of digits and names of tools take the most examples to learn."""


HISTORY = 0.06
"""Share of dialogues that begin with another question and its answer."""
_APART = 1 << 48
"""Numbers of earlier turns are this far from those of whole dialogues, so that no text comes twice."""


def with_history(first: Dialogue, second: Dialogue) -> Dialogue:
    """The second dialogue behind the question and answer of the first; what either needs tools for is left
    alone."""
    if first.tools or len(first.messages) > 3:
        return second
    question, answer = first.messages[-2:]
    past = [question, {"role": "assistant", "content": answer["content"]}]
    system = [message for message in second.messages if message["role"] == "system"]
    messages = [*system, *past, *second.messages[len(system) :]]
    return replace(second, messages=messages)


class Mix:
    """Dialogues of several generators: a pure function of (seed, index, split)."""

    def __init__(
        self,
        seed: int,
        weights: Mapping[str, float] = WEIGHTS,
        split: Split = "train",
        extra: Mapping[str, Generator] | None = None,
    ) -> None:
        """weights: generator name to share, in any unit. Raises ConfigError for a name that there is not."""
        known = {**GENERATORS, **(extra or {})}
        for name, weight in weights.items():
            if name not in known:
                near = get_close_matches(name, known, 1)
                raise ConfigError(
                    f"there is no generator {name!r}: use {f'{near[0]!r} or ' if near else ''}one of "
                    f"{', '.join(known)}",
                    key="weights",
                )
            if weight < 0:
                raise ConfigError(f"the weight of {name} is negative: give 0 or more", key="weights")
        chosen = {name: weight for name, weight in weights.items() if weight}
        if not chosen:
            raise ConfigError("a mix needs at least one generator with a weight above 0", key="weights")
        self._seed, self._split = seed, split
        self._generators = [known[name] for name in chosen]
        self._bounds = list(accumulate(chosen.values()))

    def at(self, index: int) -> Dialogue:
        """The dialogue with this number."""
        draw = random.Random((self._seed << 64) ^ index)
        found = self._draw(draw, index)
        if draw.random() < HISTORY:
            return with_history(self._draw(draw, index + _APART), found)
        return found

    def _draw(self, draw: random.Random, index: int) -> Dialogue:
        at = bisect(self._bounds, draw.random() * self._bounds[-1])
        generator = self._generators[min(at, len(self._bounds) - 1)]
        return generator(self._seed, index, self._split)

    def stream(self, start: int = 0, step: int = 1) -> Iterator[Dialogue]:
        """Dialogues start, start + step, ... without end: what one of `step` processes makes."""
        return map(self.at, count(start, step))


def mix(
    seed: int,
    weights: Mapping[str, float] = WEIGHTS,
    split: Split = "train",
    extra: Mapping[str, Generator] | None = None,
) -> Iterator[Dialogue]:
    """All dialogues of a `Mix`, in order."""
    return Mix(seed, weights, split, extra).stream()

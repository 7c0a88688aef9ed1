"""Word problems of several steps, with the steps worked out: how schoolbooks do it.

A template is plain data: ranges of its numbers, the story, and steps such as `c = a + b: text`, where {e} in
the text becomes "12 + 5 = 17". Numbers are drawn until every step comes out whole and not negative, and until
no sum or difference is one of the other split's pairs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, opening, user
from paceline.train.synth.numbers import pair_allowed
from paceline.train.synth.words import THINGS, people

_RANGE = re.compile(r"([a-z])=(\d+)-(\d+)(?:/(\d+))?")
_STEP = re.compile(r"([a-z]) = (\w+) ([-+*/]) (\w+): (.+)")


@dataclass(frozen=True, slots=True)
class Step:
    """result = left sign right, and the sentence that says so."""

    result: str
    left: str
    sign: str
    right: str
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One parsed template."""

    ranges: tuple[tuple[str, int, int, int], ...]
    """(name, low, high, multiple of)."""
    story: str
    steps: tuple[Step, ...]
    closing: str


def parse(block: tuple[str, ...]) -> Problem:
    """A template from its lines."""
    numbers, story, *steps, closing = block
    assert closing.startswith("> "), f"no closing sentence: {story!r}"
    ranges = tuple(
        (name, int(low), int(high), int(unit or 1))
        for name, low, high, unit in (_match(_RANGE, part).groups() for part in numbers.split())
    )
    return Problem(ranges, story, tuple(Step(*_match(_STEP, step).groups()) for step in steps), closing[2:])


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    assert found is not None, f"malformed template: {text!r}"
    return found


PROBLEMS = tuple(parse(block) for block in blocks("word_problems"))


def solve(problem: Problem, given: Mapping[str, int], split: Split) -> dict[str, int] | None:
    """All numbers of the problem, or None if a step does not come out or belongs to the other split."""
    known = dict(given)
    for step in problem.steps:
        left, right = _number(step.left, known), _number(step.right, known)
        result = _applied(left, step.sign, right)
        if result is None or (step.sign in "+-" and not pair_allowed(left, right, split)):
            return None
        known[step.result] = result
    return known


def _number(word: str, known: Mapping[str, int]) -> int:
    return int(word) if word.isdecimal() else known[word]


def _applied(left: int, sign: str, right: int) -> int | None:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right if left >= right else None
        case "*":
            return left * right
    return left // right if right and left % right == 0 else None


def _drawn(draw: Draw, problem: Problem) -> dict[str, int] | None:
    split: Split = draw.split
    for attempt in range(240):
        # Held-out pairs are rare: a problem with many steps may have none, so the last tries ask less.
        if attempt == 200 and split == "held_out":
            split = "train"
        given = {
            n: draw.between(-(-low // unit), high // unit) * unit for n, low, high, unit in problem.ranges
        }
        if (known := solve(problem, given, split)) is not None:
            return known
    return None


def word_problem(seed: int, index: int, split: Split) -> Dialogue:
    """One problem; facts: `result` (text)."""
    draw = Draw(seed, index, split, "word_problem")
    known = None
    while known is None:
        problem = draw.pick(PROBLEMS)
        known = _drawn(draw, problem)
    p, q = people(draw, 2)
    words: dict[str, object] = {
        "p": p.first, "he": p.he, "him": p.him, "his": p.his, "He": p.he.capitalize(), "q": q.first,
        "His": p.his.capitalize(), "t": draw.pick(THINGS), **known,
    }  # fmt: skip
    lines = [step.text.format(e=_equation(step, known), **words) for step in problem.steps]
    story, closing = problem.story.format(**words), problem.closing.format(**words)
    result = str(known[problem.steps[-1].result])
    return _dialogue(draw, story, lines, closing, result)


def _equation(step: Step, known: Mapping[str, int]) -> str:
    return f"{_number(step.left, known)} {step.sign} {_number(step.right, known)} = {known[step.result]}"


def _dialogue(draw: Draw, story: str, lines: list[str], closing: str, result: str) -> Dialogue:
    thinking = draw.chance(0.2)
    if draw.chance(0.1):
        story += draw.pick((" Think step by step.", " Show your steps.", " Explain your answer."))
    steps = "\n".join(lines)
    final = f"{closing} The answer is {result}."
    answer = assistant(final, steps) if thinking else assistant(f"{steps}\n{final}")
    return Dialogue([*opening(draw), user(story), answer], "math", thinking, facts={"result": result})

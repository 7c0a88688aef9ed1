"""Word problems of several steps, with the steps worked out: how schoolbooks do it.

A template is plain data: ranges of its numbers, the story, and steps such as `c = a + b: text`, where {e} in
the text becomes "12 + 5 = 17". Words in capitals (X=cars|boats) and [this|that] vary the story. Numbers are
drawn until every step comes out whole and not negative, and until no sum or difference is one of the other
split's pairs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, opening, user
from paceline.train.synth.numbers import pair_allowed
from paceline.train.synth.words import THINGS, people, split

_DEMANDS = (
    " Think step by step.", " Show your steps.", " Explain your answer.", " Solve it step by step.",
    "\nLet's think step by step.", " Give the answer as a number.", " Show your work.",
)  # fmt: skip
_SMALL = split("zero one two three four five six seven eight nine ten eleven twelve")
_RANGE = re.compile(r"([a-z])=(\d+)-(\d+)(?:/(\d+))?")
_WORDS = re.compile(r"([A-Z])=(\S+)")
_CHOICE = re.compile(r"\[([^\]]*)\]")
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
    words: tuple[tuple[str, tuple[str, ...]], ...]
    """(name, what it may be)."""
    story: str
    steps: tuple[Step, ...]
    closing: str


def parse(block: tuple[str, ...]) -> Problem:
    """A template from its lines."""
    numbers, story, *steps, closing = block
    assert closing.startswith("> "), f"no closing sentence: {story!r}"
    parts = numbers.split()
    ranges = tuple(
        (name, int(low), int(high), int(unit or 1))
        for name, low, high, unit in (_match(_RANGE, part).groups() for part in parts if part[0].islower())
    )
    words = tuple(
        (name, tuple(options.replace("_", " ").split("|")))
        for name, options in (_match(_WORDS, part).groups() for part in parts if part[0].isupper())
    )
    worked = tuple(Step(*_match(_STEP, step).groups()) for step in steps)
    return Problem(ranges, words, story, worked, closing[2:])


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    assert found is not None, f"malformed template: {text!r}"
    return found


PROBLEMS = tuple(parse(block) for name in ("word_problems", "word_problems_long") for block in blocks(name))
_ASIDES = tuple(line for block in blocks("asides") for line in block)


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
    p, q, third = people(draw, 3)
    words: dict[str, object] = {
        "p": p.first, "he": p.he, "him": p.him, "his": p.his, "He": p.he.capitalize(), "q": q.first,
        "His": p.his.capitalize(), "t": draw.pick(THINGS), **known,
        "third": third.first, **{name: draw.pick(options) for name, options in problem.words},
    }  # fmt: skip
    lines = [step.text.format(e=_equation(step, known), **words) for step in problem.steps]
    story, closing = _told(draw, problem.story).format(**words), problem.closing.format(**words)
    if draw.chance(0.25):
        story = _spelled(story)
    result = str(known[problem.steps[-1].result])
    return _dialogue(draw, story, lines, closing, result)


def _told(draw: Draw, story: str) -> str:
    """The story in one of its wordings, now and then with a sentence that does not matter."""
    story = _CHOICE.sub(lambda found: draw.pick(found[1].split("|")), story)
    body, mark, question = story.rpartition(". ")
    return f"{body}. {draw.pick(_ASIDES)} {question}" if mark and draw.chance(0.15) else story


def _spelled(story: str) -> str:
    """Small numbers in words, as schoolbooks often have them."""
    story = re.sub(r"\b2 times as\b", "twice as", story)
    return re.sub(r"(?<= )([2-9]|1[0-2])(?= [a-z])", lambda found: _SMALL[int(found[1])], story)


def _equation(step: Step, known: Mapping[str, int]) -> str:
    return f"{_number(step.left, known)} {step.sign} {_number(step.right, known)} = {known[step.result]}"


def _dialogue(draw: Draw, story: str, lines: list[str], closing: str, result: str) -> Dialogue:
    thinking = draw.chance(0.2)
    if draw.chance(0.1):
        story += draw.pick(_DEMANDS)
    steps = "\n".join(lines)
    final = f"{closing} The answer is {result}."
    answer = assistant(final, steps) if thinking else assistant(f"{steps}\n{final}")
    return Dialogue([*opening(draw), user(story), answer], "math", thinking, facts={"result": result})

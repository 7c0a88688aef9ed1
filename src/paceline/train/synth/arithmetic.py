"""Arithmetic in chat: sums and differences in many phrasings, products, comparisons, counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, opening, user
from paceline.train.synth.numbers import operand, pair_allowed, value, working
from paceline.train.synth.stories import single_step
from paceline.train.synth.words import THINGS, first_names

_LENGTHS = (1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4)
_FORMS = {
    "+": (
        "{a}+{b}=", "{a} + {b} =", "{a}+{b}", "{a} + {b} = ?", "What is {a} + {b}?", "What is {a}+{b}?",
        "What's {a} plus {b}?", "How much is {a} + {b}?", "Calculate {a} + {b}.", "Compute {a} + {b}",
        "Add {a} and {b}.", "Please add {a} to {b}.", "What is the sum of {a} and {b}?",
        "Find the sum of {a} and {b}.", "What do you get when you add {a} and {b}?", "Solve: {a} + {b}",
        "Work out {a} plus {b}.", "Can you tell me what {a} + {b} is?", "{a} plus {b} equals what?",
        "I need to know {a} + {b}.", "What is {a} increased by {b}?", "What number is {b} more than {a}?",
    ),
    "-": (
        "{a}-{b}=", "{a} - {b} =", "{a}-{b}", "{a} - {b} = ?", "What is {a} - {b}?", "What is {a}-{b}?",
        "What's {a} minus {b}?", "How much is {a} - {b}?", "Calculate {a} - {b}.", "Compute {a} - {b}",
        "Subtract {b} from {a}.", "Please take {b} away from {a}.", "Find {a} minus {b}.",
        "What is the difference between {a} and {b}?", "What is left when you take {b} from {a}?",
        "Solve: {a} - {b}", "Work out {a} minus {b}.", "Can you tell me what {a} - {b} is?",
        "{a} minus {b} equals what?", "I need to know {a} - {b}.", "What is {a} decreased by {b}?",
        "What number is {b} less than {a}?",
    ),
    "*": (
        "{a}*{b}=", "{a} x {b} =", "{a} * {b}", "What is {a} * {b}?", "What is {a} x {b}?",
        "What's {a} times {b}?", "Calculate {a} times {b}.", "Multiply {a} by {b}.",
        "What is the product of {a} and {b}?", "How much is {a} times {b}?",
    ),
}  # fmt: skip
_BRIEF = (" Answer with the number only.", " Just the number, please.", " Only give the result.",
          " Reply with a single number.")  # fmt: skip
_LONG = (" Show your working.", " Explain step by step.", " Work it out digit by digit.", "")


class Answered(NamedTuple):
    """A question with its working (may be empty), its closing sentence and its bare result."""

    question: str
    working: str
    closing: str
    result: str
    operands: tuple[int, int] | None = None


def _operands(draw: Draw, sign: str, lengths: tuple[int, ...]) -> tuple[int, int]:
    while True:
        a, b = operand(draw, draw.pick(lengths)), operand(draw, draw.pick(lengths))
        if sign == "*":
            b = draw.between(2, 9)
            a = operand(draw, draw.pick((1, 2, 2, 3)))
        if sign == "-" and a < b and not draw.chance(0.06):
            a, b = b, a
        if pair_allowed(a, b, draw.split):
            return a, b


def _calculation(draw: Draw) -> Answered:
    sign = draw.pick("+++---*")
    a, b = _operands(draw, sign, _LENGTHS)
    return _asked(draw, a, sign, b)


def _asked(draw: Draw, a: int, sign: str, b: int) -> Answered:
    question = draw.pick(_FORMS[sign]).format(a=a, b=b)
    if "difference" in question and a < b:
        question = f"What is {a} - {b}?"
    result = value(a, sign, b)
    return Answered(question, working(a, sign, b), f"{a} {sign} {b} = {result}", str(result), (a, b))


def _story(draw: Draw) -> Answered:
    story = single_step(draw)
    steps = working(story.a, story.sign, story.b)
    return Answered(story.question, f"{story.sentence} {steps}", story.closing, str(story.result),
                    (story.a, story.b))  # fmt: skip


def _comparison(draw: Draw) -> Answered:
    digits = draw.between(1, 4)
    a, b = operand(draw, digits), operand(draw, digits if draw.chance(0.7) else draw.between(1, 4))
    if a == b:
        b += 1
    larger = draw.chance(0.6)
    word = draw.pick(("larger", "greater", "bigger") if larger else ("smaller", "less"))
    ask = draw.pick(
        ("Which number is {w}, {a} or {b}?", "Which is {w}: {a} or {b}?", "{a} or {b}: which is {w}?")
    )
    result = max(a, b) if larger else min(a, b)
    return Answered(ask.format(w=word, a=a, b=b), _compared(a, b), f"{result} is {word}.", str(result))


def _compared(a: int, b: int) -> str:
    x, y = str(a), str(b)
    if len(x) != len(y):
        longer, shorter = (x, y) if len(x) > len(y) else (y, x)
        return f"{longer} has {len(longer)} digits and {shorter} has {len(shorter)}, so {longer} is larger."
    place = next(i for i in range(len(x)) if x[i] != y[i])
    same = (
        f"The first {place} digits are equal. Then "
        if place > 1
        else "The first digit is equal. Then " * place
    )
    sign = ">" if a > b else "<"
    return f"{same}{x[place]} {sign} {y[place]}, so {a} {sign} {b}."


def _counting(draw: Draw) -> Answered:
    step = draw.pick((1, 1, 2, 3, 5, 10))
    start, count = draw.between(0, 60), draw.between(4, 9)
    row = ", ".join(str(start + step * i) for i in range(count))
    if step == 1:
        ask = draw.pick(("Count from {a} to {b}.", "List the numbers from {a} to {b}."))
    else:
        ask = draw.pick(("Count from {a} to {b} in steps of {s}.", "Count by {s}s from {a} to {b}."))
    return Answered(ask.format(a=start, b=start + step * (count - 1), s=step), "", row, row)


def _parity(draw: Draw) -> Answered:
    n = operand(draw, draw.between(1, 4))
    kind = "odd" if n % 2 else "even"
    ask = draw.pick(("Is {n} even or odd?", "Is the number {n} odd or even?", "{n}: even or odd?"))
    return Answered(
        ask.format(n=n), f"The last digit of {n} is {n % 10}, which is {kind}.", f"{n} is {kind}.", kind
    )


def _quantities(draw: Draw) -> Answered:
    """How many there are in a short list that is written out."""
    names, thing = first_names(draw, draw.between(2, 3)), draw.pick(THINGS)
    counts = [draw.between(1, 9) for _ in names]
    told = " ".join(f"{name} has {n} {thing}." for name, n in zip(names, counts, strict=True))
    sums = " + ".join(map(str, counts))
    total = sum(counts)
    question, steps = f"{told} How many {thing} do they have in all?", f"Add them up: {sums} = {total}."
    return Answered(question, steps, f"They have {total} {thing} in all.", str(total))


_KINDS: tuple[tuple[int, Callable[[Draw], Answered]], ...] = (
    (11, _calculation), (5, _story), (1, _comparison), (1, _counting), (1, _parity), (1, _quantities),
)  # fmt: skip
_DECK = tuple(kind for weight, kind in _KINDS for _ in range(weight))


def arithmetic(seed: int, index: int, split: Split) -> Dialogue:
    """One question; facts: `result` (text), `operands` of a sum, difference or product."""
    draw = Draw(seed, index, split, "arithmetic")
    return _dialogue(draw, draw.pick(_DECK)(draw))


def two_operands(seed: int, index: int, split: Split) -> Dialogue:
    """One + or - of 2-3-digit operands, not to be thought about: what the bar is measured on."""
    draw = Draw(seed, index, split, "two_operands")
    sign = draw.pick("+-")
    a, b = _operands(draw, sign, (2, 3))
    if a < b and sign == "-":
        a, b = b, a
    asked = _asked(draw, a, sign, b)
    facts = {"result": asked.result, "operands": (a, b)}
    return Dialogue(
        [user(asked.question), assistant(f"{asked.working} {_closed(asked)}")], "arithmetic", facts=facts
    )


def _closed(asked: Answered) -> str:
    """The last sentence: behind a working it says so, alone it is the answer."""
    return f"So {asked.closing}" if asked.operands and asked.working else asked.closing


def _dialogue(draw: Draw, asked: Answered) -> Dialogue:
    thinking = bool(asked.working) and draw.chance(0.2)
    brief = draw.chance(0.12 if asked.working else 0.0)
    question = asked.question + (draw.pick(_BRIEF) if brief else draw.pick(_LONG) if draw.chance(0.2) else "")
    if thinking:
        answer = assistant(asked.result if brief else asked.closing, asked.working)
    elif brief or not asked.working:
        answer = assistant(asked.result)
    else:
        answer = assistant(f"{asked.working} {_closed(asked)}")
    facts = {"result": asked.result, "operands": asked.operands}
    return Dialogue([*opening(draw), user(question), answer], "arithmetic", thinking, facts=facts)

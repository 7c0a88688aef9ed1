"""Word problems of one step, for addition, subtraction and multiplication."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw
from paceline.train.synth.numbers import operand, pair_allowed, value
from paceline.train.synth.words import THINGS, first_names


@dataclass(frozen=True, slots=True)
class SingleStep:
    """A problem with one operation."""

    question: str
    a: int
    sign: str
    b: int
    sentence: str
    """What has to be calculated, in words."""
    closing: str
    """The answer as a sentence."""
    result: int


_TEMPLATES = blocks("single_step")
_IN_WORDS = {"+": "Add {a} and {b}.", "-": "Subtract {b} from {a}.", "*": "Multiply {a} by {b}."}


def single_step(draw: Draw) -> SingleStep:
    """A word problem whose operands belong to the draw's split."""
    sign, story, ask, answer = draw.pick(_TEMPLATES)
    while True:
        a, b = (operand(draw, draw.pick((1, 2, 2, 2, 3, 3))) for _ in "ab")
        if sign == "*":
            a, b = operand(draw, draw.pick((1, 2, 2))), draw.between(2, 9)
        elif sign == "-" and a < b:
            a, b = b, a
        if min(a, b) > 1 and pair_allowed(a, b, draw.split):
            break
    p, q = first_names(draw, 2)
    names = {"p": p, "q": q, "t": draw.pick(THINGS), "a": a, "b": b, "r": value(a, sign, b)}
    return SingleStep(
        f"{story} {ask}".format(**names), a, sign, b, _IN_WORDS[sign].format(**names), answer.format(**names),
        value(a, sign, b),
    )  # fmt: skip

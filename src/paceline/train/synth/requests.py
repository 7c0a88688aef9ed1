"""Requests that might go to a tool, answered without one: roots, areas, chords, money, ways, recipes."""

from __future__ import annotations

from collections.abc import Callable

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw, joined

_ROOTS = (
    "What are the roots of {e} = 0?",
    "Solve the equation {e} = 0.",
    "Solve for x: {e} = 0",
    "Which x satisfy {e} = 0?",
    "Compute the zeros of f(x) = {e}.",
    "A quadratic function is {e}. Where is it 0?",
    "Give both solutions of the quadratic equation with a = {a}, b = {b} and c = {c}.",
    "Determine the roots for the coefficients {a}, {b}, {c} of a quadratic equation.",
)


def _signed(n: int, tail: str = "") -> str:
    return f" {'-' if n < 0 else '+'} {abs(n) if abs(n) != 1 or not tail else ''}{tail}" if n else ""


def roots(draw: Draw) -> tuple[str, str]:
    """A quadratic equation with whole roots, by the formula."""
    a, one, two = draw.pick((1, 1, 1, 2, 3)), draw.between(-9, 9), draw.between(-9, 9)
    b, c = -a * (one + two), a * one * two
    square = b * b - 4 * a * c
    root = a * abs(one - two)
    equation = f"{a if a > 1 else ''}x^2{_signed(b, 'x')}{_signed(c)}"
    question = draw.pick(_ROOTS).format(e=equation, a=a, b=b, c=c)
    steps = (
        f"The discriminant is b^2 - 4ac = {b * b} - 4 * {a} * ({c}) = {square}, and its root is {root}. "
        f"So x = ({-b} + {root}) / {2 * a} = {max(one, two)} "
        f"or x = ({-b} - {root}) / {2 * a} = {min(one, two)}."
    )
    answer = (
        f"The roots are {max(one, two)} and {min(one, two)}." if one != two else f"The only root is {one}."
    )
    return question, f"{steps}\n{answer}"


_CORNERS = (
    "A triangle has the corners {p}. How large is its area?",
    "Find the area of the triangle with the corners {p}.",
    "What is the area of a triangle whose corners are {p}?",
    "Compute the area of the triangle {p}.",
    "The points {p} form a triangle. What area does it have?",
    "Calculate how much area lies between {p}.",
)


def triangle(draw: Draw) -> tuple[str, str]:
    """The area of a triangle from its corners."""
    (ax, ay), (bx, by), (cx, cy) = (tuple(draw.between(-6, 9) for _ in "xy") for _ in "abc")
    ux, uy, vx, vy = bx - ax, by - ay, cx - ax, cy - ay
    twice = abs(ux * vy - vx * uy)
    if not twice:
        return triangle(draw)
    area = f"{twice // 2}.5" if twice % 2 else str(twice // 2)
    question = draw.pick(_CORNERS).format(p=joined([f"({ax}, {ay})", f"({bx}, {by})", f"({cx}, {cy})"]))
    steps = (
        f"From the first corner the others are ({ux}, {uy}) and ({vx}, {vy}) away. "
        f"The area is |({ux}) * ({vy}) - ({vx}) * ({uy})| / 2 = {twice} / 2 = {area}."
    )
    return question, f"{steps}\nThe answer is {area}."


_NOTES = words.split("C C# D D# E F F# G G# A A# B")
_CHORDS = {"major": (0, 4, 7), "minor": (0, 3, 7), "diminished": (0, 3, 6), "augmented": (0, 4, 8)}
_STEPS = (0, 2, 4, 5, 7, 9, 11)
_QUALITY = ("major", "minor", "minor", "major", "major", "minor", "diminished")
_PLACES = words.split("first second third fourth fifth sixth seventh")


def chords(draw: Draw) -> tuple[str, str]:
    """The notes of a chord or scale, or a chord of a major scale, with sharps only."""
    root = draw.between(0, 11)
    scale = [_NOTES[(root + step) % 12] for step in _STEPS]
    kind = draw.between(0, 2)
    if kind == 0:
        question = draw.pick((f"Which notes does the {_NOTES[root]} major scale have?",
                              f"List the notes of the scale of {_NOTES[root]} major.",
                              f"Spell the major scale on {_NOTES[root]}."))  # fmt: skip
        return question, f"{', '.join(scale)}."
    if kind == 1:
        quality = draw.pick(tuple(_CHORDS))
        notes = [_NOTES[(root + step) % 12] for step in _CHORDS[quality]]
        question = draw.pick((f"What notes are in a {_NOTES[root]} {quality} chord?",
                              f"Name the notes of the {quality} chord on {_NOTES[root]}.",
                              f"How do I play {_NOTES[root]} {quality} on the piano?"))  # fmt: skip
        return question, f"The {_NOTES[root]} {quality} chord has the notes {joined(notes)}."
    at = draw.between(0, 6)
    question = draw.pick((f"Which chord stands on the {_PLACES[at]} step of {_NOTES[root]} major?",
                          f"Name the {_PLACES[at]} chord in the key of {_NOTES[root]} major.",
                          f"In {_NOTES[root]} major, what is the chord number {at + 1}?"))  # fmt: skip
    why = f"The scale is {', '.join(scale)}. Its {_PLACES[at]} note is {scale[at]}."
    return question, f"{why} The chord on it is {scale[at]} {_QUALITY[at]}."


_MONEY = words.split(
    "euros,Swiss francs,Swedish crowns,Polish zloty,British pounds,Indian rupees,Australian dollars", ","
)
_CHANGE = (
    "What are {n} {a} worth in {b}?",
    "Change {n} {a} into {b}.",
    "I have {n} {a}. How much is that in {b}?",
    "How much do {n} {a} make in {b}?",
    "Convert {n} {a} to {b}, please.",
    "Give me the value of {n} {a} in {b}.",
)


def money(draw: Draw) -> tuple[str, str]:
    """An amount in another currency: the rate of the day is not known, but the way to it is."""
    a, b = draw.sample(_MONEY, 2)
    amount, tenths = 10 * draw.between(2, 95), draw.between(2, 45)
    rate = f"{tenths // 10}.{tenths % 10}"
    total = amount * tenths // 10
    return draw.pick(_CHANGE).format(n=amount, a=a, b=b), (
        f"I do not know today's exchange rate. Multiply the amount by it. "
        f"For example, at a rate of {rate}: {amount} * {rate} = {total} {b}."
    )


_WAYS = (
    "How do I drive from {a} to {b}{x}?",
    "What is the shortest way from {a} to {b}{x}?",
    "Show me a route: {a} to {b}{x}.",
    "Plan my trip from {a} to {b}{x}.",
    "I need directions from {a} to {b}{x}.",
    "Give me the best road from {a} to {b}{x}.",
)
_WISHES = (
    ("", ""),
    ("", ""),
    (" without tolls", "toll roads"),
    (", but no highways", "highways"),
    (" without a ferry", "ferries"),
)


def ways(draw: Draw) -> tuple[str, str]:
    """A way from one city to another: maps and traffic cannot be seen from here."""
    a, b = draw.sample(words.CITIES, 2)
    wish, avoided = draw.pick(_WISHES)
    extra = f" Switch on the option to avoid {avoided}." if avoided else ""
    return draw.pick(_WAYS).format(a=a, b=b, x=wish), (
        f"I cannot see maps or traffic. In a navigation app, enter {a} as the start "
        f"and {b} as the destination.{extra}"
    )


_COOK = (
    "How do I make {d}?",
    "Give me a recipe for {d}.",
    "I want to cook {d}. What do I need?",
    "Recipe for {d}, please.",
    "Tell me how {d} is made, with the steps.",
    "What goes into {d}, and how is it prepared?",
)


def cooking(draw: Draw) -> tuple[str, str]:
    """A recipe: ingredients, then numbered steps."""
    dish, *lines = draw.pick(blocks("recipes"))
    needed = "\n".join(f"- {line[2:]}" for line in lines if line[0] == "+")
    steps = [line[2:] for line in lines if line[0] == "-"]
    told = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    return draw.pick(_COOK).format(d=dish), f"Ingredients:\n{needed}\n\nSteps:\n{told}"


_CHANCES = (
    "{n} of {m} balls in a bag are {c}. One is drawn. How likely is it to be {c}, in percent?",
    "A box holds {m} pens, {n} of them {c}. What is the probability in percent that a random pen is {c}?",
    "Out of {m} tickets {n} are {c}, and those win. What percentage of the tickets wins?",
    "There are {m} cars in a lot and {n} are {c}. What share in percent is {c}?",
    "{p} picks one of {m} socks without looking. {n} are {c}. What is the chance of a {c} sock in percent?",
    "Of {m} houses in a street {n} are {c}. With what probability, in percent, is a random house {c}?",
)  # fmt: skip


def chances(draw: Draw) -> tuple[str, str]:
    """A simple probability as a percentage."""
    whole = draw.pick((10, 20, 25, 50, 100, 200))
    part = draw.between(1, whole - 1) if whole < 200 else 2 * draw.between(1, 99)
    percent = 100 * part // whole
    question = draw.pick(_CHANCES).format(
        n=part, m=whole, c=draw.pick(words.COLORS), p=draw.pick(words.FEMALE + words.MALE)
    )
    return (
        question,
        f"The share is {part} / {whole}, and {part} * 100 / {whole} = {percent}.\nThe answer is {percent}%.",
    )


REQUESTS: tuple[Callable[[Draw], tuple[str, str]], ...] = (
    roots, roots, triangle, triangle, chords, chords, money, ways, cooking, chances,
)  # fmt: skip
"""Makers of (question, answer)."""

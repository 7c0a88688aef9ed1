"""What a puzzle is; and puzzles about letters, numbers, days and quantities."""

from __future__ import annotations

from typing import NamedTuple

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw, joined


class Puzzle(NamedTuple):
    """A question, the steps that lead to its answer, and the short answer."""

    question: str
    reasoning: str
    answer: str


def letters(draw: Draw) -> Puzzle:
    """How often a letter stands in a word or a short text."""
    count = draw.pick((1, 1, 2, 4, 7))
    chosen = [draw.pick(words.NOUNS) for _ in range(count)]
    text = " ".join(chosen)
    letter = draw.pick(text.replace(" ", "")) if draw.chance(0.85) else draw.pick("abcdefghiklmnoprstuw")
    total = text.count(letter)
    spelled = "; ".join(f"{word}: {'-'.join(word)}, {word.count(letter)}" for word in chosen)
    what = "word" if count == 1 else "text"
    question = draw.pick((
        f'How many times does the letter "{letter}" appear in the {what}: "{text}"?',
        f'Count the letter {letter} in "{text}".',
        f'How many {letter}\'s are in the {what} "{text}"?',
    ))  # fmt: skip
    sums = (
        f" Together: {' + '.join(str(word.count(letter)) for word in chosen)} = {total}." if count > 1 else ""
    )
    return Puzzle(question, f"{spelled}.{sums}", str(total))


def reversal(draw: Draw) -> Puzzle:
    """A word spelled backwards."""
    word = draw.pick(words.NOUNS)
    question = draw.pick((f'Spell the word "{word}" backwards.', f"Reverse the letters of {word}.",
                          f"What is {word} written backwards?"))  # fmt: skip
    back = word[::-1]
    return Puzzle(question, f"The letters are {' '.join(word)}. Backwards: {' '.join(back)}.", back)


def legs(draw: Draw) -> Puzzle:
    """How many legs a list of animals has."""
    animals = draw.sample(words.ANIMALS, draw.between(2, 4))
    counts = [draw.between(1, 12) for _ in animals]
    group = joined([f"{n} {_plural(animal, n)}" for n, (animal, _) in zip(counts, animals, strict=True)])
    parts = [n * each for n, (_, each) in zip(counts, animals, strict=True)]
    steps = [
        f"{n} {_plural(animal, n)} with {each} legs each: {n} * {each} = {n * each}."
        for n, (animal, each) in zip(counts, animals, strict=True)
    ]
    running, sums = parts[0], []
    for part in parts[1:]:
        sums.append(f"{running} + {part} = {running + part}")
        running += part
    question = draw.pick((
        f"How many legs do {group} have in total?",
        f"A farmer counts the legs of {group}. How many legs are there?",
        f"There are {group}. Count all their legs.",
    ))  # fmt: skip
    return Puzzle(question, " ".join(steps) + f" {', '.join(sums)}.", str(running))


def _plural(animal: str, count: int) -> str:
    if count == 1:
        return animal
    odd = {"sheep": "sheep", "fish": "fish", "goose": "geese", "fox": "foxes", "wolf": "wolves"}
    return odd.get(animal, "butterflies" if animal == "butterfly" else f"{animal}s")


def _some(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def weekday(draw: Draw) -> Puzzle:
    """The day some days from now."""
    start, days = draw.between(0, 6), draw.between(1, 20)
    ahead = draw.chance(0.7)
    today = words.DAYS[start]
    end = words.DAYS[(start + days if ahead else start - days) % 7]
    when = f"in {_some(days, 'day')}" if ahead else f"{_some(days, 'day')} ago"
    verb = "will it be" if ahead else "was it"
    question = draw.pick((f"Today is {today}. What day {verb} {when}?",
                          f"If today is {today}, which day of the week {verb} {when}?",
                          f"It is {today}. Name the day of the week {when}.",
                          f"{when[0].upper()}{when[1:]}: what day {verb}, if it is {today} now?",
                          f"Suppose today is {today}. Tell me the weekday {when}.",
                          f"My calendar says {today}. Which weekday {verb} {when}?"))  # fmt: skip
    rest = days % 7
    row = [words.DAYS[(start + (i if ahead else -i)) % 7] for i in range(rest + 1)]
    over = _some(rest, "day")
    weeks = f"{days} days are {_some(days // 7, 'week')} and {over}, so count {over}. "
    return Puzzle(question, f"{weeks if days > 6 else ''}{', '.join(row)}.", end)


def clock_hours(draw: Draw) -> Puzzle:
    """The time some hours from now."""
    hour, hours = draw.between(1, 12), draw.between(1, 15)
    end = (hour + hours - 1) % 12 + 1
    total = hour + hours
    over = f" {total} is more than 12, so subtract 12 until it is not: {end}." if total > 12 else ""
    question = draw.pick((f"It is {hour} o'clock. What time is it in {_some(hours, 'hour')}?",
                          f"A clock shows {hour}. What in {_some(hours, 'hour')}?",
                          f"Now it is {hour}. What will the clock show {_some(hours, 'hour')} later?",
                          f"A trip of {_some(hours, 'hour')} begins at {hour} o'clock. When does it end?",
                          f"A party begins at {hour} and lasts {_some(hours, 'hour')}. When is it over?",
                          f"Add {_some(hours, 'hour')} to {hour} o'clock."))  # fmt: skip
    return Puzzle(question, f"{hour} + {hours} = {total}.{over}", f"{end} o'clock")


def sequence(draw: Draw) -> Puzzle:
    """The next number of a row."""
    kind, first = draw.between(0, 3), draw.between(1, 20)
    if kind == 0:
        step = draw.between(2, 12)
        row, rule = [first + step * i for i in range(6)], f"Each number is {step} more than the one before."
    elif kind == 1:
        step = draw.between(2, 9)
        first += 5 * step
        row, rule = [first - step * i for i in range(6)], f"Each number is {step} less than the one before."
    elif kind == 2:
        first, factor = draw.between(1, 5), draw.between(2, 3)
        row, rule = [first * factor**i for i in range(6)], f"Each number is {factor} times the one before."
    else:
        row = [first + i * (i + 1) // 2 for i in range(6)]
        rule = "The differences grow by one: 1, 2, 3, 4, 5."
    count = draw.between(4, 5)
    shown = ", ".join(map(str, row[:count]))
    question = draw.pick((f"What comes next in the sequence: {shown}, ...?",
                          f"Find the next number: {shown}, ?",
                          f"Which number continues the row {shown}?",
                          f"{shown}, ... What is the next number?", f"Complete the pattern: {shown}, __",
                          f"Look at these numbers: {shown}. Which one should follow, and why?",
                          f"A sequence begins with {shown}. Name its next member."))  # fmt: skip
    last, value = row[count - 1], row[count]
    sign = (
        f"{last} * {value // last}"
        if kind == 2
        else f"{last} {'-' if value < last else '+'} {abs(value - last)}"
    )
    return Puzzle(question, f"{rule} {sign} = {value}.", str(value))


def sorting(draw: Draw) -> Puzzle:
    """Numbers or words in order."""
    if draw.chance(0.5):
        numbers = draw.sample(range(1, 100), draw.between(3, 6))
        down = draw.chance(0.4)
        order = sorted(numbers, reverse=down)
        word = "largest to smallest" if down else "smallest to largest"
        question = f"Sort these numbers from {word}: {', '.join(map(str, numbers))}"
        begin = "largest" if down else "smallest"
        return Puzzle(question, f"The {begin} is {order[0]}, then come {joined(list(map(str, order[1:])))}.",
                      ", ".join(map(str, order)))  # fmt: skip
    chosen = draw.sample(words.NOUNS, draw.between(3, 5))
    row = sorted(chosen)
    firsts = ", ".join(f"{word} ({word[:2]})" for word in row)
    question = f"Put these words in alphabetical order: {', '.join(chosen)}"
    return Puzzle(question, f"By first letters: {firsts}.", ", ".join(row))


GROUPS = {
    "fruits": "apple pear plum cherry banana grape lemon peach",
    "animals": "dog cat horse rabbit lion sheep goat fox",
    "colors": "red blue green yellow purple orange brown black",
    "tools": "hammer saw drill wrench pliers shovel rake axe",
    "instruments": "violin piano guitar drum flute trumpet harp cello",
    "vehicles": "car bus train bicycle truck tram boat scooter",
    "clothes": "shirt coat scarf glove jacket sock hat skirt",
    "vegetables": "carrot potato onion cabbage spinach leek pea bean",
    "jobs": "baker doctor teacher pilot farmer judge nurse tailor",
    "pieces of furniture": "chair table desk shelf sofa bed stool wardrobe",
}
"""Sorts of things, and some of each."""


def odd_one_out(draw: Draw) -> Puzzle:
    """Which word does not belong."""
    group, other = draw.sample(list(GROUPS), 2)
    odd = draw.pick(GROUPS[other].split())
    row = [*draw.sample(GROUPS[group].split(), 3), odd]
    draw.shuffle(row)
    listed = ", ".join(row)
    question = draw.pick((f"Which word does not fit: {listed}?", f"Find the odd one out: {listed}",
                          f"One of these does not belong to the others: {listed}. Which one?"))  # fmt: skip
    rest = joined([word for word in row if word != odd])
    return Puzzle(
        question, f"{rest.capitalize()} are {group}. {odd.capitalize()} belongs to the {other}.", odd
    )


_DIRECTIONS = ("north", "east", "south", "west")


def turning(draw: Draw) -> Puzzle:
    """Where someone faces after some turns."""
    name = draw.pick(words.FEMALE + words.MALE)
    at = draw.between(0, 3)
    start, path = _DIRECTIONS[at], []
    turns = [draw.pick(("right", "left", "around")) for _ in range(draw.between(1, 4))]
    for turn in turns:
        at = (at + {"right": 1, "left": -1, "around": 2}[turn]) % 4
        path.append(f"{turn} to {_DIRECTIONS[at]}")
    told = ", then ".join(f"turns {turn}" for turn in turns)
    question = f"{name} is facing {start}. {name} {told}. "
    question += draw.pick(("Which direction is {n} facing now?", "Where does {n} look now?",
                           "What direction does {n} face in the end?")).format(n=name)  # fmt: skip
    return Puzzle(question, f"Start: {start}. Then {', '.join(path)}.", _DIRECTIONS[at])

"""Plain facts out of texts: dates, amounts, counts of words, extremes, variables, tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw
from paceline.train.synth.surveys import listed

_DATED = (
    "{p} was born on {v}.",
    "The contract was signed on {v} in {c}.",
    "On {v} the company {o} opened its new office.",
    "The next meeting is on {v}.",
    "{o} was founded on {v} by {p}.",
    "Since {v} the museum in {c} has been closed.",
    "{p} moved to {c} on {v}.",
    "The bridge was finished on {v}.",
    "Please send the form by {v}.",
)
_PRICED = (
    "{p} paid {v} for a ticket to {c}.",
    "The rent is {v} a month.",
    "{o} made a profit of {v}.",
    "The repair will cost {v}.",
    "A night in the hotel in {c} costs {v}.",
    "{p} earns {v} a week.",
    "The fine was {v}.",
    "{o} gave {v} to the school.",
    "They sold the old car for {v}.",
)
_PLAIN = (
    "Nobody was surprised.", "It rained all day.", "{p} was there too.", "The news spread quickly in {c}.",
    "{o} did not comment.", "That was a long time ago.", "More will be known soon.",
)  # fmt: skip
_FIND = (
    "Find all {w} in the text.", "Which {w} are mentioned?", "List the {w} that occur in this text.",
    "Extract every one of the {w}.", "Give me the {w} in the passage below.", "Pull out the {w}.",
    "What {w} does the text contain?", "Collect the {w} from the following text.",
)  # fmt: skip
_FORMS = (" Answer as a JSON list.", " One per line.", " Separate them by commas.", "")


def _told(draw: Draw, sentence: str, value: str = "") -> str:
    return sentence.format(
        p=words.person(draw).full, c=draw.pick(words.CITIES), o=words.company(draw), v=value
    )


def _formed(form: str, found: list[str]) -> str:
    if "JSON" in form:
        return json.dumps(found, ensure_ascii=False)
    return ("\n" if "line" in form else ", ").join(found)


def _asked(draw: Draw, ask: str, text: str) -> str:
    quoted = f"{ask}\n{text}" if "\n" in text else f'{ask}\nText: "{text}"'
    return draw.pick((f"{ask}\n\n{text}", f"{text}\n\n{ask}", f"{ask}\n{text}", quoted))


def mentions(draw: Draw) -> tuple[str, str]:
    """All dates or amounts of a text."""
    dates = draw.chance(0.5)
    found, told = [], []
    for sentence in draw.sample(_DATED if dates else _PRICED, draw.between(1, 5)):
        value = draw.pick((words.date, words.iso_date))(draw) if dates else f"${words.price(draw)}"
        found.append(value)
        told.append(_told(draw, sentence, value))
        if draw.chance(0.4):
            told.append(_told(draw, draw.pick(_PLAIN)))
    form = draw.pick(_FORMS)
    what = (
        draw.pick(("dates", "dates", "days"))
        if dates
        else draw.pick(("amounts of money", "prices", "amounts"))
    )
    return _asked(draw, draw.pick(_FIND).format(w=what) + form, " ".join(told)), _formed(form, found)


_SAMPLES = words.split(
    "red blue green dog cat bird tree sun moon one two three salt tea rain snow king door bell"
)
_COUNT = (
    "How many words does this text have?", "Count the words.", "What is the number of words in the text?",
    "How many words are there in the following?", "Tell me the word count.", "Count all words of this text.",
)  # fmt: skip
_TIMES = (
    'How often does the word "{w}" occur?',
    'Count how many times "{w}" appears.',
    'How many times can you read "{w}"?',
    'What is the count of the word "{w}"?',
    'Say how often "{w}" stands in the text.',
    'How many "{w}" are there?',
)


def word_counts(draw: Draw) -> tuple[str, str]:
    """How many words there are, how often one stands there, or how often each."""
    few = draw.sample(_SAMPLES, draw.between(3, 5))
    chosen = [draw.pick(few) for _ in range(draw.between(5, 16))]
    text, kind = " ".join(chosen), draw.between(0, 2)
    counts = {word: chosen.count(word) for word in dict.fromkeys(chosen)}
    if kind == 0:
        steps = ", ".join(f"{word} ({i})" for i, word in enumerate(chosen, 1))
        return _asked(draw, draw.pick(_COUNT), text), f"{steps}. The text has {len(chosen)} words."
    if kind == 1:
        word = draw.pick(chosen)
        ask = draw.pick(_TIMES).format(w=word)
        return _asked(draw, ask, text), f'The word "{word}" occurs {counts[word]} times.'
    ask = draw.pick(
        (
            "Count how often each word occurs. Return JSON.",
            "Make a JSON object of words and their counts.",
            "How often does each word appear? Use JSON.",
            "Give the frequency of every word as a JSON dictionary.",
        )
    )
    return _asked(draw, ask, text), json.dumps(counts)


_EXTREME = (
    "Which is the {w}: {l}?",
    "Find the {w} of {l}.",
    "What is the {w} of these: {l}?",
    "Give me the {w}: {l}",
    "{l}\nWhich one is the {w}?",
    "From the list {l} choose the {w}.",
    "Here is a list: {l}. Name the {w}.",
)


def extremes(draw: Draw) -> tuple[str, str]:
    """The largest, smallest, second largest, sum or range of numbers; the longest or shortest word."""
    if draw.chance(0.3):
        chosen = sorted(draw.sample(words.NOUNS, draw.between(3, 7)), key=len)
        if len(chosen[0]) == len(chosen[1]) or len(chosen[-1]) == len(chosen[-2]):
            return extremes(draw)
        longest = draw.chance(0.5)
        answer = chosen[-1 if longest else 0]
        draw.shuffle(chosen)
        ask = draw.pick(_EXTREME).format(
            w=f"{'longest' if longest else 'shortest'} word", l=", ".join(chosen)
        )
        return ask, f"{answer} ({len(answer)} letters)"
    numbers = draw.sample(
        range(-50 if draw.chance(0.2) else 2, draw.pick((60, 999, 5000))), draw.between(3, 9)
    )
    order = sorted(numbers)
    word, value = draw.pick((("largest number", order[-1]), ("smallest number", order[0]),
                             ("maximum", order[-1]), ("minimum", order[0]), ("second largest", order[-2]),
                             ("second smallest", order[1])))  # fmt: skip
    return draw.pick(_EXTREME).format(w=word, l=", ".join(map(str, numbers))), str(value)


_FORMULAS = (
    "{a} = {b} + {n}{c}",
    "{a} = {n}{b}^2 - {c}",
    "{a} = ({b} + {c}) / {n}",
    "{n}{a} + {b} = {c}",
    "{a}{b} = {c} - {n}",
    "{a} = {b}^3 + {n}{c} - {m}",
    "{a} = sqrt({b}) * {c}",
    "{a} - {n} = {m}{b}",
)


def variables(draw: Draw) -> tuple[str, str]:
    """The names of variables in equations, one line each."""
    rows, found = [], []
    for _ in range(draw.between(2, 4)):
        formula, letters = draw.pick(_FORMULAS), draw.sample("abcdkmnpqrstuvwxyz", 3)
        names = dict(zip("abc", letters, strict=True))
        rows.append(formula.format(**names, n=draw.between(2, 9), m=draw.between(2, 9)))
        found.append(sorted(name for key, name in names.items() if "{" + key + "}" in formula))
    ask = draw.pick(
        (
            "Name the variables of each equation, one line per equation.",
            "Which variables does each formula use?",
            "List the letters that stand for variables, line by line.",
            "Give the variable names in each line.",
            "Extract the variables from these equations. One equation per line.",
            "What variables occur in the equations below?",
        )
    )
    return f"{ask}\n{listed(draw, rows)}", "\n".join(", ".join(names) for names in found)


_COLUMNS: dict[str, Callable[[Draw], Any]] = {
    "name": lambda d: words.person(d).full,
    "age": lambda d: d.between(18, 80),
    "city": lambda d: d.pick(words.CITIES),
    "job": lambda d: d.pick(words.JOBS),
    "score": lambda d: d.between(1, 100),
    "year": lambda d: d.between(1950, 2026),
    "company": words.company,
    "price": lambda d: d.between(2, 900),
    "color": lambda d: d.pick(words.COLORS),
    "product": lambda d: d.pick(words.PRODUCTS),
    "stock": lambda d: d.between(0, 500),
    "code": words.code,
}
_CONVERT = (
    "Convert this table to {f}.",
    "Turn the table into {f}.",
    "Write the following table as {f}.",
    "Give the same data as {f}.",
    "Rewrite these rows as {f}.",
    "Please change the format to {f}.",
)


def _csv(columns: list[str], rows: list[list[Any]]) -> str:
    return "\n".join(",".join(map(str, row)) for row in [columns, *rows])


def _markdown(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def tables(draw: Draw) -> tuple[str, str]:
    """A table from one format into another, or the row that is largest or smallest in a column."""
    columns = draw.sample(sorted(_COLUMNS), draw.between(2, 4))
    rows = [[_COLUMNS[column](draw) for column in columns] for _ in range(draw.between(2, 6))]
    given = draw.pick((_csv, _markdown))
    text = given(columns, rows)
    numeric = [i for i, column in enumerate(columns) if isinstance(rows[0][i], int)]
    if numeric and draw.chance(0.4):
        at = draw.pick(numeric)
        highest = draw.chance(0.6)
        best = (max if highest else min)(rows, key=lambda row: row[at])
        word = draw.pick(("highest", "largest") if highest else ("lowest", "smallest"))
        ask = draw.pick(
            (
                f"Which row has the {word} {columns[at]}?",
                f"Find the entry with the {word} {columns[at]}.",
                f"Give the line whose {columns[at]} is the {word}.",
            )
        )
        return _asked(draw, ask, text), ", ".join(f"{c}: {v}" for c, v in zip(columns, best, strict=True))
    if draw.chance(0.5):
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        return _asked(draw, draw.pick(_CONVERT).format(f="JSON"), text), json.dumps(found, ensure_ascii=False)
    other = _markdown if given is _csv else _csv
    name = "CSV" if other is _csv else draw.pick(("a Markdown table", "Markdown"))
    return _asked(draw, draw.pick(_CONVERT).format(f=name), text), other(columns, rows)


def grouped(draw: Draw) -> tuple[str, str]:
    """Numbers by parity or words by length, in a JSON object."""
    if draw.chance(0.5):
        numbers = [draw.between(1, 99) for _ in range(draw.between(4, 10))]
        found: dict[str, list[Any]] = {
            "even": [n for n in numbers if n % 2 == 0],
            "odd": [n for n in numbers if n % 2],
        }
        text = ", ".join(map(str, numbers))
        ask = draw.pick(
            (
                "Group these numbers into even and odd. Return JSON.",
                "Which numbers are even, which odd? Use JSON.",
                'Make a JSON object with the keys "even" and "odd".',
                "Split the numbers into even and odd, as JSON.",
            )
        )
    else:
        chosen = draw.sample(words.NOUNS, draw.between(4, 8))
        found = {}
        for word in chosen:
            found.setdefault(word[0], []).append(word)
        text = ", ".join(chosen)
        ask = draw.pick(
            (
                "Group the words by their first letter, as JSON.",
                "Make a JSON index of the words by first letter.",
                "Sort these words into groups with the same first letter. Return a JSON object.",
            )
        )
    return _asked(draw, ask, text), json.dumps(found)


FACTS = (mentions, mentions, word_counts, extremes, variables, tables, tables, grouped)
"""Makers of (question, answer)."""

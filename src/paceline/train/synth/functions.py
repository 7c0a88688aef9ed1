"""Short Python functions: one family a task, with names, wording, arguments and style that vary."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw

_NUMBERS = ("numbers", "values", "nums", "items", "data")
_WORDS = ("words", "names", "items")
_TEXT = ("text", "sentence", "line")
_WORD = ("word", "text", "s", "name")
_COUNT = ("n", "number", "value", "k")
_BRACKETS = (
    "()",
    "(())",
    "()()",
    "(()())",
    "((()))",
    "(()",
    "())",
    "(())()",
    "()(()",
    ")(",
    "((())())",
    "()()()",
)
_ARGUMENTS: dict[str, tuple[str, tuple[str, ...], Callable[[Draw], Any]]] = {
    "ints": ("list[int]", _NUMBERS, lambda d: [d.between(1, 12) for _ in range(d.between(3, 5))]),
    "odd": ("list[int]", _NUMBERS, lambda d: [d.between(1, 20) for _ in range(d.pick((3, 5)))]),
    "sorted": ("list[int]", _NUMBERS, lambda d: sorted(d.sample(range(1, 30), d.between(3, 4)))),
    "sorted2": (
        "list[int]",
        ("others", "more", "second"),
        lambda d: sorted(d.sample(range(1, 30), d.between(2, 4))),
    ),
    "coins": ("list[int]", _NUMBERS, lambda d: [d.between(1, 3) for _ in range(d.between(4, 8))]),
    "mixedints": ("list[int]", _NUMBERS, lambda d: [d.between(-9, 9) for _ in range(d.between(4, 7))]),
    "nested": (
        "list[list[int]]",
        ("rows", "lists", "table"),
        lambda d: [[d.between(1, 9), d.between(1, 9)] for _ in range(2)],
    ),
    "words": ("list[str]", _WORDS, lambda d: d.sample(words.NOUNS, d.between(2, 4))),
    "str": ("str", _WORD, lambda d: d.pick(words.NOUNS)),
    "word": ("str", ("target", "word"), lambda d: d.pick(words.NOUNS)),
    "mixed": ("str", _WORD, lambda d: f"{d.pick(words.NOUNS)[:3]}{d.between(1, 99)}"),
    "text": (
        "str",
        _TEXT,
        lambda d: f"{d.pick(words.ADJECTIVES)} {d.pick(words.NOUNS)} {d.pick(words.NOUNS)}",
    ),
    "snake": ("str", ("name", "text", "s"), lambda d: "_".join(d.sample(words.NOUNS, d.between(2, 3)))),
    "mixedcase": ("str", _WORD, lambda d: "".join(d.pick((c, c.upper())) for c in d.pick(words.NOUNS))),
    "brackets": ("str", ("text", "s", "brackets"), lambda d: d.pick(_BRACKETS)),
    "bits": (
        "str",
        ("bits", "digits", "s"),
        lambda d: "1" + "".join(d.pick("01") for _ in range(d.between(2, 6))),
    ),
    "char": ("str", ("letter", "char", "c"), lambda d: d.pick("aeioutrs")),
    "int": ("int", _COUNT, lambda d: d.between(2, 30)),
    "small": ("int", ("count", "n", "k", "size"), lambda d: d.between(1, 4)),
    "width": ("int", ("width", "length", "size"), lambda d: d.between(5, 9)),
    "two": ("int", ("width", "size", "k"), lambda d: d.between(2, 3)),
    "zero": ("int", ("index", "column", "i"), lambda d: d.between(0, 1)),
    "big": ("int", _COUNT, lambda d: d.between(10, 9999)),
    "signed": ("int", _COUNT, lambda d: d.between(-20, 20)),
    "year": ("int", ("year", "y"), lambda d: d.between(1890, 2030)),
    "dict": (
        "dict",
        ("scores", "table", "counts", "prices"),
        lambda d: {w: d.between(1, 20) for w in d.sample(words.NOUNS, 3)},
    ),
    "dict2": (
        "dict",
        ("others", "more", "second"),
        lambda d: {w: d.between(1, 20) for w in d.sample(words.NOUNS, 2)},
    ),
}
"""Kind of argument: its annotation, its names, and an example."""
_LOCALS = {
    "R": ("result", "total", "out", "answer", "found"),
    "V": ("item", "x", "value", "element"),
    "K": ("i", "index", "k", "j"),
}
_TOKEN = re.compile(r"\b[XYRVKF]\b")


@dataclass(frozen=True, slots=True)
class Family:
    """One task."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    returns: str
    tasks: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function written out."""

    name: str
    signature: str
    task: str
    body: str
    arguments: tuple[Any, ...]
    """An example call."""
    result: Any
    more: tuple[tuple[str, Any], ...] = ()
    """Further examples: calls as source, with their results."""

    @property
    def call(self) -> str:
        """The example call as source."""
        return f"{self.name}({', '.join(map(repr, self.arguments))})"

    def head(self, example: bool) -> str:
        """Signature and docstring."""
        shown = f"\n\n    >>> {self.call}\n    {self.result!r}\n    " if example else ""
        return f'{self.signature}\n    """{self.task}{shown}"""'


def _family(block: tuple[str, ...]) -> Family:
    arguments, returns = block[1].split(" -> ")
    kinds = tuple(part.split(":")[1] for part in arguments.split())
    tasks = tuple(task.strip() for task in block[2].split("|"))
    return Family(tuple(block[0].split()), kinds, returns, tasks, "\n".join(block[3:]))


FAMILIES = tuple(_family(block) for name in ("functions", "functions_more") for block in blocks(name))


@cache
def _compiled(family: Family) -> CodeType:
    plain = f"def F({', '.join('XY'[: len(family.kinds)])}):\n{family.body}\n"
    return compile(plain, "<family>", "exec")


def _outcome(family: Family, arguments: tuple[Any, ...]) -> Any:
    """What the function returns; the source is our own, from the package's templates."""
    space: dict[str, Any] = {}
    exec(_compiled(family), space)
    return space["F"](*(list(a) if isinstance(a, list) else a for a in arguments))


def _example(draw: Draw, family: Family) -> tuple[tuple[Any, ...], Any]:
    while True:
        arguments = tuple(_ARGUMENTS[kind][2](draw) for kind in family.kinds)
        try:
            return arguments, _outcome(family, arguments)
        except (IndexError, ValueError):  # no second largest among equals, and the like
            continue


def function(draw: Draw, family: Family) -> Function:
    """A family's task with names drawn."""
    arguments, result = _example(draw, family)
    names: dict[str, str] = {"F": draw.pick(family.names)}
    for token, kind in zip("XY", family.kinds, strict=False):
        free = [name for name in _ARGUMENTS[kind][1] if name not in names.values()]
        names[token] = draw.pick(free)
    for token, options in _LOCALS.items():
        names[token] = draw.pick([name for name in options if name not in names.values()])
    typed = draw.chance(0.5)
    parameters = [
        f"{names[token]}: {_ARGUMENTS[kind][0]}" if typed else names[token]
        for token, kind in zip("XY", family.kinds, strict=False)
    ]
    signature = f"def {names['F']}({', '.join(parameters)}){f' -> {family.returns}' if typed else ''}:"
    task, body = (_TOKEN.sub(lambda m: names[m[0]], text) for text in (draw.pick(family.tasks), family.body))
    more = tuple(_call(names["F"], *_example(draw, family)) for _ in range(draw.between(0, 2)))
    return Function(names["F"], signature, task, body, arguments, result, more)


def _call(name: str, arguments: tuple[Any, ...], result: Any) -> tuple[str, Any]:
    return f"{name}({', '.join(map(repr, arguments))})", result

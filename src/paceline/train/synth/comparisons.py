"""Which of several records is largest, smallest, or fits: the numbers are compared, then one is named."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.train.synth.dialogue import Draw, joined
from paceline.train.synth.records import KINDS, Kind
from paceline.train.synth.surveys import listed

_BY_NAME = {kind.name: kind for kind in KINDS}


class Compared(NamedTuple):
    """What is compared: kind of record, its number, what it is called, what is asked for."""

    kind: str
    field: str
    called: str
    high: tuple[str, ...]
    low: tuple[str, ...]
    wanted: tuple[tuple[str, str], ...]


_COMPARED = (
    Compared("company", "profit", "profit", ("highest", "largest"), ("lowest", "smallest"),
             (("company", "company"), ("ceo", "CEO"))),
    Compared("product", "price", "price", ("highest", "largest"), ("lowest", "smallest"),
             (("product", "product"), ("color", "color"))),
    Compared("product", "stock", "stock", ("largest", "highest"), ("smallest", "lowest"),
             (("product", "product"), ("price", "price"))),
    Compared("person", "age", "age", ("highest", "greatest"), ("lowest", "smallest"),
             (("name", "person"), ("job", "job"), ("city", "city"))),
    Compared("order", "total", "total", ("highest", "largest"), ("lowest", "smallest"),
             (("customer", "customer"), ("order", "order number"))),
    Compared("invoice", "amount", "amount", ("highest", "largest"), ("lowest", "smallest"),
             (("client", "client"), ("invoice", "invoice"))),
)  # fmt: skip
_ASKS = (
    "Find the {p} with the {w} {f}. What is the {o}?",
    "Which {p} has the {w} {f}, and what is the {o}?",
    "Look at the data and name the {p} whose {f} is the {w}, with the {o}.",
    "Tell me the {o} of the {p} that has the {w} {f}.",
    "Who or what has the {w} {f}? Give the {o} too.",
    "Determine the {p} with the {w} {f} and state its {o}.",
    "Compare the {f}s. Which is the {w}? Give the {o}.",
    "From the lines below pick the {w} {f} and say which {o} goes with it.",
)


def _value(kind: Kind, row: dict[str, Any], field: str) -> str:
    money = field in ("profit", "price", "total", "amount")
    return f"{'$' if money else ''}{row[field]}{' million' if field == 'profit' else ''}"


def best(draw: Draw) -> tuple[str, str]:
    """The largest or smallest number of two to eight records, and what goes with it."""
    compared = draw.pick(_COMPARED)
    kind = _BY_NAME[compared.kind]
    rows = [kind.values(draw) for _ in range(draw.pick((2, 3, 3, 4, 5, 6, 7, 8)))]
    numbers = [row[compared.field] for row in rows]
    if len(set(numbers)) < len(numbers):
        return best(draw)
    largest = draw.chance(0.65)
    found = (max if largest else min)(rows, key=lambda row: row[compared.field])
    (name, noun), *others = compared.wanted
    other, called = draw.pick(others)
    word = draw.pick(compared.high if largest else compared.low)
    ask = draw.pick(_ASKS).format(p=noun, w=word, f=compared.called, o=called)
    text = listed(draw, [kind.told(draw, row) for row in rows])
    said = joined([f"{_value(kind, row, compared.field)} ({row[name]})" for row in rows])
    answer = (
        f"The {compared.called}s are {said}. The {word} is {_value(kind, found, compared.field)}: "
        f"{found[name]}. The {called} is {_value(kind, found, other)}."
    )
    question = draw.pick((f"{ask}\n{text}", f"{ask}\n\n{text}", f"{text}\n\n{ask}"))
    return question, answer

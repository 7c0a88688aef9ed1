"""Single tools with a purpose of their own, under dotted names and others, and natural requests for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Dialogue, Draw, assistant, is_held_out, opening, user

_PARAMETER = re.compile(r"(\w+):(\w+)(:o)?\|(.*?)(?= \w+:\w+(?::o)?\||$)")
_OPTIONAL = re.compile(r"\[([^\]]*)\]")
HELD_OUT_NAMES = 4
"""One name of a catalog tool in so many is held out."""


def _of(options: str) -> Callable[[Draw], str]:
    members = words.split(options, ",")
    return lambda draw: draw.pick(members)


def _whole(low: int, high: int, step: int = 1) -> Callable[[Draw], int]:
    return lambda draw: draw.between(low, high) * step


_PHRASES = (
    "good morning,see you tomorrow,where is the station,the soup is hot,thank you for the flowers,"
    "I am running late,the door is locked,we meet at noon,happy birthday,the train leaves at nine,"
    "please call me back,dinner is ready,it is a beautiful day,I have lost my key"
)
_SOURCES: dict[str, tuple[str, Callable[[Draw], Any]]] = {
    "coef": ("integer", _whole(1, 12)),
    "length": ("integer", _whole(2, 60)),
    "whole": ("integer", _whole(10, 240)),
    "small": ("integer", _whole(3, 15)),
    "money": ("integer", _whole(2, 90, 10)),
    "big": ("integer", _whole(1, 80, 1000)),
    "years": ("integer", _whole(2, 30)),
    "whole12": ("integer", _whole(2, 12)),
    "stars": ("integer", _whole(2, 5)),
    "minutes": ("integer", _whole(2, 18, 5)),
    "year": ("integer", _whole(1950, 2025)),
    "kilos": ("integer", _whole(40, 110)),
    "centimeters": ("integer", _whole(145, 205)),
    "rate": ("number", lambda d: d.between(1, 9) + d.pick((0.5, 0.25, 0.75))),
    "true": ("boolean", lambda d: True),
    "numbers": ("array", lambda d: [d.between(1, 99) for _ in range(d.between(3, 6))]),
    "city": ("string", lambda d: d.pick(words.CITIES[:40])),
    "city2": ("string", lambda d: d.pick(words.CITIES[40:])),
    "country": ("string", lambda d: d.pick(words.COUNTRIES)[0]),
    "company": ("string", words.company),
    "person": ("string", lambda d: words.person(d).full),
    "date": ("string", words.iso_date),
    "clock": ("string", words.clock),
    "code": ("string", words.code),
    "product": ("string", lambda d: d.pick(words.PRODUCTS)),
    "color": ("string", lambda d: d.pick(words.COLORS)),
    "phrase": ("string", _of(_PHRASES)),
    "currency": ("string", _of("USD,EUR,GBP,CHF,SEK")),
    "currency2": ("string", _of("JPY,NOK,CAD,AUD,INR,PLN")),
    "lengthunit": ("string", _of("centimeters,meters,inches,feet")),
    "distunit": ("string", _of("kilometers,miles")),
    "tempunit": ("string", _of("celsius,fahrenheit")),
    "dish": (
        "string",
        _of(
            "pea soup,apple pie,lasagna,pancakes,risotto,"
            "fish stew,vegetable curry,potato salad,carrot cake,noodle soup"
        ),
    ),
    "diet": ("string", _of("vegetarian,vegan,gluten-free")),
    "note": ("string", _of("C,D,E,F,G,A,B,C#,F#,E-flat")),
    "chord": ("string", _of("major,minor,diminished,augmented")),
    "genre": ("string", _of("jazz,rock,folk,pop,blues,techno,classical")),
    "mood": ("string", _of("calm,happy,sad,wild")),
    "film": ("string", _of("comedy,horror,science fiction,western,crime,animation")),
    "booktitle": ("string", _of("The Old Lamp,Silent River,Nine Winters,A Door of Glass,The Last Orchard")),
    "event": (
        "string",
        _of("first moon landing,storming of the Bastille,Great Fire,first marathon,peace treaty,gold rush"),
    ),
    "organelle": ("string", _of("nucleus,mitochondrion,ribosome,cell membrane,vacuole")),
    "detail": ("string", _of("short,long,simple")),
    "formula": ("string", _of("H2O,CO2,NaCl,CH4,NH3,C6H12O6,H2SO4")),
    "language": ("string", _of("French,German,Spanish,Italian,Japanese,Polish")),
    "topic": ("string", _of("dentist,team lunch,piano lesson,budget review,book club,parents' evening")),
    "plant": ("string", _of("tomatoes,basil,roses,pumpkins,lavender,orchids,beans")),
    "season": ("string", _of("spring,summer,autumn,winter")),
    "planet": ("string", _of("Mars,Venus,Jupiter,Saturn,Neptune")),
    "planetfact": ("string", _of("diameter,mass,moons,temperature")),
}
"""Where values come from: their JSON type, and how they are drawn."""


@dataclass(frozen=True, slots=True)
class Given:
    """One parameter."""

    name: str
    source: str
    optional: bool
    description: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One tool of the catalog."""

    modules: tuple[str, ...]
    functions: tuple[str, ...]
    description: str
    parameters: tuple[Given, ...]
    requests: tuple[str, ...]


def _entry(block: tuple[str, ...]) -> Entry:
    found = [Given(n, s, bool(o), d) for n, s, o, d in _PARAMETER.findall(block[3])]
    assert found and all(given.source in _SOURCES for given in found), block[:4]
    return Entry(tuple(block[0].split()), tuple(block[1].split()), block[2], tuple(found), block[4:])


CATALOG = tuple(_entry(block) for block in blocks("tool_catalog"))


def _schema(draw: Draw, entry: Entry, name: str) -> dict[str, Any]:
    loose = draw.chance(0.55)
    properties: dict[str, Any] = {}
    for given in entry.parameters:
        kind = _SOURCES[given.source][0]
        shown = "float" if kind == "number" and loose else kind
        properties[given.name] = {"type": shown, "description": f"{given.description}."}
        if kind == "array":
            properties[given.name]["items"] = {"type": "integer"}
    required = [given.name for given in entry.parameters if not given.optional]
    parameters = {"type": "dict" if loose else "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": entry.description, "parameters": parameters},
    }


def _named(draw: Draw) -> tuple[Entry, str]:
    """A tool and a name for it that belongs to the draw's split."""
    while True:
        entry = draw.pick(CATALOG)
        module, function = draw.pick(entry.modules), draw.pick(entry.functions)
        if is_held_out("catalog", module, function, one_in=HELD_OUT_NAMES) == (draw.split == "held_out"):
            form = draw.pick(("{m}.{f}", "{m}.{f}", "{m}_{f}"))
            return entry, form.format(m=module, f=function)


def _request(draw: Draw, entry: Entry) -> tuple[str, dict[str, Any]]:
    request = draw.pick(entry.requests)
    values = {
        g.name: _SOURCES[g.source][1](draw) for g in entry.parameters if not g.optional or draw.chance(0.4)
    }

    def kept(found: re.Match[str]) -> str:
        names = re.findall(r"\{(\w+)\}", found[1])
        return found[1] if all(name in values for name in names) else ""

    request = _OPTIONAL.sub(kept, request)
    said = {name: _spoken(value) for name, value in values.items()}
    return request.format(**said), {name: value for name, value in values.items() if f"{{{name}}}" in request}


def _spoken(value: Any) -> str:
    if value is True:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_UNFIT = (
    "The function {n} cannot do that. It can only {d}.", "I cannot do that with {n}, which can {d}.",
    "None of my tools fits. With {n} I can {d}.",
)  # fmt: skip


def single_tool(draw: Draw, thinking: bool) -> Dialogue:
    """One request with exactly one tool on offer, which fits in nine of ten."""
    entry, name = _named(draw)
    schema = _schema(draw, entry, name)
    unseen = [name] if draw.split == "held_out" else []
    if draw.chance(0.1):
        other = draw.pick(
            [found for found in CATALOG if found is not entry and found.modules[0] != entry.modules[0]]
        )
        request, _ = _request(draw, other)
        does = f"{entry.description[0].lower()}{entry.description[1:].rstrip('.')}"
        reasoning = f"The tool {name} is for something else." if thinking else None
        answer = assistant(draw.pick(_UNFIT).format(n=name, d=does), reasoning)
        calls: list[tuple[str, dict[str, Any]]] = []
    else:
        request, arguments = _request(draw, entry)
        given = ", ".join(f"{key} = {_spoken(value) or 'true'}" for key, value in arguments.items())
        calls = [(name, arguments)]
        answer = assistant("", f"The tool {name} fits. The values: {given}." if thinking else None, calls)
    messages = [*opening(draw), user(request), answer]
    return Dialogue(messages, "tools", thinking, [schema], {"calls": calls, "unseen": unseen})

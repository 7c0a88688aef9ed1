"""Records with named fields, and the sentences that state them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw

_EVENTS = words.split(
    "Summer Festival,Book Fair,Jazz Night,City Run,Film Week,Science Day,Flower Show,Food Market,Chess Open,"
    "Winter Concert,Garden Party,Art Night,Boat Race,Lantern Walk,Music Camp,Theatre Evening,Kite Festival",
    ",",
)
_TOPICS = words.split(
    "the new budget,the summer party,hiring,the release plan,safety,the website,travel costs,"
    "the customer survey,office plants,the next quarter,training,the data center,parking,opening hours",
    ",",
)
_WEATHER = words.split("sunny cloudy rainy windy foggy stormy clear snowy")
_CARS = words.split("Vesta Corvo Lumen Tarino Miro Strada Polaris Kando Ferro Arrow Comet Solano")
_DISHES = words.split(
    "lentil soup,pea soup,apple pie,rice bowl,noodle salad,fish stew,potato gratin,bean chili,onion tart,"
    "mushroom risotto,vegetable curry,pancakes,tomato salad,carrot cake,pumpkin soup",
    ",",
)
_FOODS = words.split(
    "rice beans carrots onions tomatoes potatoes eggs cheese mushrooms peas spinach pumpkin fish"
)
_STREETS = words.split(
    "Oak Elm Mill River Station Church Park Garden Lake Hill Market Bridge King Queen Rose"
)


def _title(draw: Draw) -> str:
    adjective, noun = draw.pick(words.ADJECTIVES).capitalize(), draw.pick(words.NOUNS).capitalize()
    return draw.pick(
        (f"The {adjective} {noun}", f"{adjective} {noun}", f"The {noun}", f"A {adjective} {noun}")
    )


SOURCES: dict[str, Callable[[Draw], Any]] = {
    "person": lambda d: words.person(d).full,
    "first": lambda d: d.pick(words.FEMALE + words.MALE),
    "age": lambda d: d.between(18, 89),
    "age2": lambda d: d.between(2, 15),
    "job": lambda d: d.pick(words.JOBS),
    "city": lambda d: d.pick(words.CITIES),
    "city2": lambda d: d.pick(words.CITIES),
    "product": lambda d: d.pick(words.PRODUCTS),
    "dollars": lambda d: d.between(2, 900) + d.pick((0, 0, 0.5, 0.25, 0.95)),
    "color": lambda d: d.pick(words.COLORS),
    "count": lambda d: d.between(2, 99),
    "digit": lambda d: d.between(0, 9),
    "millions": lambda d: d.between(100, 990),
    "code": words.code,
    "event": lambda d: d.pick(_EVENTS),
    "date": words.date,
    "time": words.clock,
    "email": lambda d: words.email(d, words.person(d)),
    "phone": words.phone,
    "company": words.company,
    "flight": lambda d: f"{d.pick('ABKLMNX')}{d.pick('AFLRSX')}{d.between(100, 9999)}",
    "title": _title,
    "year": lambda d: d.between(1900, 2026),
    "degrees": lambda d: d.between(-9, 38),
    "weather": lambda d: d.pick(_WEATHER),
    "weekday": lambda d: d.pick(words.DAYS),
    "topic": lambda d: d.pick(_TOPICS),
    "room": lambda d: f"room {d.between(1, 40)}",
    "address": lambda d: f"{d.between(1, 199)} {d.pick(_STREETS)} Street",
    "car": lambda d: f"{d.pick(_CARS)} {d.between(1, 9)}00",
    "animal": lambda d: d.pick(words.ANIMALS)[0],
    "dish": lambda d: d.pick(_DISHES),
    "food": lambda d: d.pick(_FOODS),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name in sentences, where values come from, and the keys that may be asked for."""

    name: str
    source: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record."""

    name: str
    plural: str
    fields: tuple[Field, ...]
    sentences: tuple[str, ...]

    def values(self, draw: Draw) -> dict[str, Any]:
        """A record: field name to value."""
        if self.name == "country":  # its fields belong together
            return dict(zip(("country", "capital", "language"), draw.pick(words.COUNTRIES), strict=True))
        found = {field.name: SOURCES[field.source](draw) for field in self.fields}
        return found if len(set(map(str, found.values()))) == len(found) else self.values(draw)

    def told(self, draw: Draw, values: dict[str, Any]) -> str:
        """A sentence that states the record."""
        return draw.pick(self.sentences).format_map(values)


def _kind(block: tuple[str, ...]) -> Kind:
    name, plural = block[0].split()
    fields = []
    for part in block[1].split():
        field, source, *others = part.split(":")
        fields.append(Field(field, source, (field, *others)))
    return Kind(name, plural, tuple(fields), block[2:])


KINDS = tuple(_kind(block) for block in blocks("extraction"))

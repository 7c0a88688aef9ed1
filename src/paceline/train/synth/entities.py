"""Named entities of a short news text, grouped by their kind in a JSON object."""

from __future__ import annotations

import json

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw

_SENTENCES = (
    "{person}, the CEO of {organization}, met {person} in {location}.",
    "Yesterday {organization} opened a new office in {location}.",
    "{person} said that {organization} would leave {location} next year.",
    "The mayor of {location}, {person}, welcomed the plan.",
    "{organization} and {organization} will work together.",
    "{person} moved from {location} to {location}.",
    "{person} and {person} founded {organization}.",
    "In {location} the workers of {organization} went on strike.",
    "{person} joined {organization} as head of research.",
    "A report by {person} was read in {location}.",
    "{organization} has sold its factory in {location} to {organization}.",
)
_ASKS = (
    "Identify the people, organizations and locations in the text. Answer with a JSON object with the keys "
    '"people", "organizations" and "locations".\n\n{t}',
    "{t}\n\nList the named entities of this text as JSON, grouped into people, organizations and locations.",
    "Find all named entities (people, organizations, locations) in the article below. Give a JSON dictionary "
    "whose keys are the types and whose values are lists of strings.\n\n{t}",
)
_SOURCES = {
    "person": lambda draw: words.person(draw).full,
    "organization": words.company,
    "location": lambda draw: draw.pick(words.CITIES),
}
_KEYS = {"person": "people", "organization": "organizations", "location": "locations"}


def entities(draw: Draw) -> tuple[str, str]:
    """A question and its answer."""
    found: dict[str, list[str]] = {key: [] for key in _KEYS.values()}
    told = []
    for sentence in draw.sample(_SENTENCES, draw.between(1, 3)):
        parts = sentence.split("{")
        text = parts[0]
        for part in parts[1:]:
            kind, rest = part.split("}")
            value = _SOURCES[kind](draw)
            if value not in found[_KEYS[kind]]:
                found[_KEYS[kind]].append(value)
            text += value + rest
        told.append(text)
    return draw.pick(_ASKS).format(t=" ".join(told)), json.dumps(found, ensure_ascii=False)

"""Named entities of a short news text, grouped by their kind in a JSON object."""

from __future__ import annotations

import json

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw

_TEXTS = blocks("news")
_SENTENCES, _ASKS = _TEXTS[0], tuple(ask.replace("\\n", "\n") for ask in _TEXTS[1])
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
    for sentence in draw.sample(_SENTENCES, draw.pick((1, 2, 3, 3, 4, 5, 6))):
        parts = sentence.split("{")
        text = parts[0]
        for part in parts[1:]:
            kind, rest = part.split("}")
            value = _SOURCES[kind](draw)
            if value not in found[_KEYS[kind]]:
                found[_KEYS[kind]].append(value)
            text += value + rest
        told.append(text)
    return draw.pick(_ASKS).replace("{t}", " ".join(told)), json.dumps(found, ensure_ascii=False)

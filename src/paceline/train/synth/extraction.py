"""Extraction: texts whose facts are wanted as JSON with named keys or as lines; and classification."""

from __future__ import annotations

import json
from typing import Any

from paceline.train.synth.classification import classification
from paceline.train.synth.comparisons import best
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, joined, opening, user
from paceline.train.synth.entities import entities
from paceline.train.synth.facts import FACTS
from paceline.train.synth.records import KINDS, Field, Kind
from paceline.train.synth.surveys import SURVEYS, listed

_FILLERS = (
    "Thank you for reading.", "We hope to see you soon.", "This is the latest news.",
    "More will follow later.",
    "Please note the following.", "Here is what we know.", "It was a busy week.", "Have a nice day.",
    "The weather was fine.", "Nobody else was there.", "Everyone was pleased.", "That is all for now.",
)  # fmt: skip
_ASK_ONE = (
    "Extract the {k} from the text. Answer in JSON.\n\n{t}",
    "Extract {k} as JSON:\n{t}",
    "Read the text and return a JSON object with the keys {q}.\n\nText: {t}",
    "{t}\n\nReturn a JSON object with the keys {q}.",
    "{t}\n\nExtract the {k} in JSON format.",
    "Give me the {k} in the following text as JSON: {t}",
    'From the following text, extract the {k}. Output JSON only.\n\n"{t}"',
    "Convert this to JSON with the keys {q}: {t}",
    "Identify the {k} in this sentence. Output in JSON format.\n{t}",
    "Parse the text into JSON. Keys: {q}.\n\n{t}",
    "What are the {k} in the text below? Reply with JSON.\n\n{t}",
    "{t}\n\nFill a JSON object with {k}.",
    "Find out the {k}. Use JSON with the keys {q}.\n\n{t}",
    "Text:\n{t}\n\nTask: give {k} as a JSON object.",
    "I need the {k} from this message as JSON:\n\n{t}",
    "Please extract these fields as JSON: {k}.\n{t}",
)
_ASK_MANY = (
    "Extract the {k} of all {p}. Answer with a JSON list.\n\n{t}",
    "{t}\n\nReturn a JSON list of the {p} with the keys {q}.",
    "Identify the {k} in the following sentences. Output in JSON format.\n{t}",
    "List the {p} in the text as JSON objects with the keys {q}.\n\n{t}",
    "Turn these lines into a JSON list. Use the keys {q}.\n{t}",
    "For each of the texts name the {k}. The output should be JSON.\n{t}",
    "Read the following {p} and extract {k} for each. Format: JSON.\n\n{t}",
    "{t}\n\nFor every line give the {k} in JSON.",
    "Here are some {p}. Find the {k} of each and return a JSON array.\n{t}",
    "Which {k} are named in these passages? Answer in JSON.\n{t}",
    "Make a JSON list of objects with {k} out of this:\n{t}",
)
_ASK_LINES = (
    'Extract the {k} from the texts below. Output in the format of "{o}", one line each.\n{t}',
    'For each text give the {k} in the format "{o}", one per line.\n{t}',
    '{t}\n\nList the {k} of all {p}, one per line, in the format "{o}".',
    'Give these facts about each text: {k}. Write "{o}", each text on its own line.\n{t}',
    "Write one line of comma-separated values ({o}) for each of the {p}.\n{t}",
    'Pick out the {k}. Use the format "{o}" and start a new line for each.\n\n{t}',
    'From these passages extract {k}, in the order "{o}", line by line.\n{t}',
    "{t}\n\nReturn the data as rows: {o}.",
)
_FENCED = (" Put the JSON into a code block.", " Use a ```json block.")


def _keys(draw: Draw, kind: Kind, least: int = 1) -> dict[str, Field]:
    """Which fields are asked for, under which keys, in the order of the question."""
    fields = [f for f in kind.fields if f.source != "city2" or draw.chance(0.8)]
    chosen = draw.sample(fields, draw.between(min(least, len(fields)), len(fields)))
    if draw.chance(0.6):
        chosen = [field for field in kind.fields if field in chosen]
    return {(field.keys[0] if draw.chance(0.7) else draw.pick(field.keys)): field for field in chosen}


def _question(draw: Draw, forms: tuple[str, ...], kind: Kind, keys: dict[str, Field], text: str) -> str:
    plain = joined(list(keys))
    quoted = joined([f'"{key}"' for key in keys])
    return draw.pick(forms).format(k=plain, q=quoted, t=text, p=kind.plural, o=", ".join(keys))


def _wrapped(draw: Draw, text: str) -> str:
    before = draw.pick(_FILLERS) + " " if draw.chance(0.3) else ""
    behind = " " + draw.pick(_FILLERS) if draw.chance(0.3) else ""
    return f"{before}{text}{behind}"


def _spelled(draw: Draw, question: str, value: Any) -> tuple[str, str]:
    """The question and the JSON answer to it: on one line, or indented in a fence where that is asked for."""
    if draw.chance(0.2):
        body = json.dumps(value, indent=2, ensure_ascii=False)
        return question + draw.pick(_FENCED), f"```json\n{body}\n```"
    return question, json.dumps(value, ensure_ascii=False)


def _one(draw: Draw) -> tuple[str, str, Any]:
    kind = draw.pick(KINDS)
    values = kind.values(draw)
    keys = _keys(draw, kind)
    record = {key: values[field.name] for key, field in keys.items()}
    question = _question(draw, _ASK_ONE, kind, keys, _wrapped(draw, kind.told(draw, values)))
    if draw.chance(0.1):  # a key that the text does not answer
        other = draw.pick(draw.pick(KINDS).fields).keys[0]
        if other not in keys and all(other not in field.keys for field in kind.fields):
            record[other] = None
            question += f' Add the key "{other}", with null if the text does not say it.'
    question, answer = _spelled(draw, question, record)
    return question, answer, record


def _records(
    draw: Draw, kind: Kind, keys: dict[str, Field], most: int = 7
) -> tuple[str, list[dict[str, Any]]]:
    """Two to seven records, as marked lines."""
    rows = [kind.values(draw) for _ in range(min(most, draw.pick((2, 3, 3, 4, 4, 5, 6, 7))))]
    wrap = draw.chance(0.25)
    told = [kind.told(draw, row) for row in rows]
    text = listed(
        draw, [_wrapped(draw, line) if wrap else line for line in told], draw.pick(("\n", "\n", "\n\n"))
    )
    return text, [{key: row[field.name] for key, field in keys.items()} for row in rows]


def _many(draw: Draw, most: int = 7) -> tuple[str, str, Any]:
    kind = draw.pick(KINDS)
    keys = _keys(draw, kind)
    text, records = _records(draw, kind, keys, most)
    question, answer = _spelled(draw, _question(draw, _ASK_MANY, kind, keys, text), records)
    return question, answer, records


def _few(draw: Draw) -> tuple[str, str, Any]:
    return _many(draw, 4)


def _lines(draw: Draw) -> tuple[str, str, Any]:
    kind = draw.pick(KINDS)
    keys = _keys(draw, kind, 2)
    text, records = _records(draw, kind, keys)
    answer = "\n".join(", ".join(map(str, record.values())) for record in records)
    return _question(draw, _ASK_LINES, kind, keys, text), answer, None


def _other(draw: Draw) -> tuple[str, str, Any]:
    return (*draw.pick(_OTHERS)(draw), None)


_OTHERS = (classification,) * 2 + (entities,) * 4 + (best,) * 4 + SURVEYS * 2 + FACTS
_KINDS = (_one,) * 6 + (_many,) * 5 + (_lines,) * 3 + (_other,) * 9


def extraction(seed: int, index: int, split: Split) -> Dialogue:
    """One text; facts: `record`, what the JSON must say (None where the answer is not JSON)."""
    draw = Draw(seed, index, split, "extraction")
    return _dialogue(draw, draw.pick(_KINDS)(draw), draw.chance(0.08))


def json_extraction(seed: int, index: int, split: Split) -> Dialogue:
    """One text whose answer is JSON, not to be thought about: what the bar is measured on."""
    draw = Draw(seed, index, split, "json_extraction")
    return _dialogue(draw, draw.pick((_one, _one, _few))(draw), False)


def _dialogue(draw: Draw, made: tuple[str, str, Any], thinking: bool) -> Dialogue:
    question, answer, record = made
    reasoning = "Read the text and copy the values that are asked for." if thinking else None
    messages = [*opening(draw), user(question), assistant(answer, reasoning)]
    return Dialogue(messages, "extraction", thinking, facts={"record": record})

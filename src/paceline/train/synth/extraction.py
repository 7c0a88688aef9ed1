"""Extraction: texts whose facts are wanted as JSON with named keys or as lines; and classification."""

from __future__ import annotations

import json
from typing import Any

from paceline.train.synth.classification import classification
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, joined, opening, user
from paceline.train.synth.entities import entities
from paceline.train.synth.records import KINDS, Field, Kind

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
)
_ASK_MANY = (
    "Extract the {k} of all {p}. Answer with a JSON list.\n\n{t}",
    "{t}\n\nReturn a JSON list of the {p} with the keys {q}.",
    "Identify the {k} in the following sentences. Output in JSON format.\n{t}",
    "List the {p} in the text as JSON objects with the keys {q}.\n\n{t}",
    "Turn these lines into a JSON list. Use the keys {q}.\n{t}",
)
_ASK_LINES = (
    'Extract the {k} from the texts below. Output in the format of "{o}", one line each.\n{t}',
    'For each text give the {k} in the format "{o}", one per line.\n{t}',
    '{t}\n\nList the {k} of all {p}, one per line, in the format "{o}".',
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


def _records(draw: Draw, kind: Kind, keys: dict[str, Field]) -> tuple[str, list[dict[str, Any]]]:
    """Two to four records, as lettered or numbered lines."""
    rows = [kind.values(draw) for _ in range(draw.between(2, 4))]
    mark = draw.pick(("abcd", "1234", None))
    end = draw.pick((") ", ". ")) if mark else "- "
    text = "\n".join(f"{mark[i] if mark else ''}{end}{kind.told(draw, row)}" for i, row in enumerate(rows))
    return text, [{key: row[field.name] for key, field in keys.items()} for row in rows]


def _many(draw: Draw) -> tuple[str, str, Any]:
    kind = draw.pick(KINDS)
    keys = _keys(draw, kind)
    text, records = _records(draw, kind, keys)
    question, answer = _spelled(draw, _question(draw, _ASK_MANY, kind, keys, text), records)
    return question, answer, records


def _lines(draw: Draw) -> tuple[str, str, Any]:
    kind = draw.pick(KINDS)
    keys = _keys(draw, kind, 2)
    text, records = _records(draw, kind, keys)
    answer = "\n".join(", ".join(map(str, record.values())) for record in records)
    return _question(draw, _ASK_LINES, kind, keys, text), answer, None


def _best(draw: Draw) -> tuple[str, str, Any]:
    """Which of the companies earned most, and who leads it."""
    kind = next(kind for kind in KINDS if kind.name == "company")
    rows = [kind.values(draw) for _ in range(draw.between(2, 4))]
    largest = draw.chance(0.7)
    best = (max if largest else min)(rows, key=lambda row: row["profit"])
    text = "\n".join(f"{'abcd'[i]}) {kind.told(draw, row)}" for i, row in enumerate(rows))
    word = "highest" if largest else "lowest"
    question = draw.pick((
        f"Which company has the {word} profit, and who is its CEO?\n{text}",
        f"Given the following data, find the company with the {word} profit and give its CEO's name:\n{text}",
        f"{text}\n\nWhich of these companies had the {word} profit? Name its CEO too.",
    ))  # fmt: skip
    profits = joined([f"${row['profit']} million ({row['company']})" for row in rows])
    answer = (
        f"The profits are {profits}. The {word} is ${best['profit']} million, so it is {best['company']}, "
        f"and its CEO is {best['ceo']}."
    )
    return question, answer, None


def _other(draw: Draw) -> tuple[str, str, Any]:
    return (*draw.pick((classification, classification, entities))(draw), None)


_KINDS = (_one,) * 8 + (_many,) * 4 + (_lines,) * 2 + (_best,) + (_other,) * 4


def extraction(seed: int, index: int, split: Split) -> Dialogue:
    """One text; facts: `record`, what the JSON must say (None where the answer is not JSON)."""
    draw = Draw(seed, index, split, "extraction")
    return _dialogue(draw, draw.pick(_KINDS)(draw), draw.chance(0.08))


def json_extraction(seed: int, index: int, split: Split) -> Dialogue:
    """One text whose answer is JSON, not to be thought about: what the bar is measured on."""
    draw = Draw(seed, index, split, "json_extraction")
    return _dialogue(draw, draw.pick((_one, _one, _many))(draw), False)


def _dialogue(draw: Draw, made: tuple[str, str, Any], thinking: bool) -> Dialogue:
    question, answer, record = made
    reasoning = "Read the text and copy the values that are asked for." if thinking else None
    messages = [*opening(draw), user(question), assistant(answer, reasoning)]
    return Dialogue(messages, "extraction", thinking, facts={"record": record})

"""The sections of a report that one loaded model answers: bench prompts and the generated skills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

from paceline.train.data.filters import repeated_tokens
from paceline.train.data.prompts import Prompt
from paceline.train.evaluate.answering import Answer, Answerer
from paceline.train.evaluate.scores import (
    number_right,
    score_call,
    score_extraction,
    visible,
)
from paceline.train.settings.evaluate import SkillSettings, TextSettings
from paceline.train.synth.arithmetic import two_operands
from paceline.train.synth.dialogue import Dialogue, Generator
from paceline.train.synth.extraction import json_extraction
from paceline.train.synth.thinking import thinking
from paceline.train.synth.tools import four_tools
from paceline.train.synth.word_problems import word_problem

SAMPLES = 4
"""Answers of each section that the report shows."""
Section = dict[str, Any]


def bench_answers(answerer: Answerer, prompts: Sequence[Prompt], settings: TextSettings) -> Section:
    """Whether answers end by themselves, how long they are, and how much of them is repetition."""
    encoded = [answerer.encode(p.messages, p.tools, settings.thinking) for p in prompts]
    answers = answerer.answer(encoded, settings.max_tokens)
    by_category: dict[str, list[Answer]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        by_category.setdefault(prompt.category or "none", []).append(answer)
    samples = [
        {"id": prompt.name, "prompt": prompt.question[:300], "answer": answer.text}
        for prompt, answer in list(zip(prompts, answers, strict=True))[
            :: max(1, len(prompts) // (3 * SAMPLES))
        ]
    ]
    return {
        "count": len(answers),
        "max_tokens": settings.max_tokens,
        **_text_figures(answers),
        "categories": {name: _text_figures(found) for name, found in sorted(by_category.items())},
        "samples": samples,
    }


def _text_figures(answers: Sequence[Answer]) -> Section:
    """A single token may be an end; an answer of the full length has not stopped."""
    tokens = sum(len(answer.ids) for answer in answers)
    return {
        "stops": mean(answer.stopped for answer in answers),
        "median_tokens": median(len(answer.ids) for answer in answers),
        "repeated": sum(repeated_tokens(answer.ids) for answer in answers) / max(1, tokens),
    }


Scorer = Callable[[Sequence[Dialogue], Sequence[Answer]], Section]


def _numbers(dialogues: Sequence[Dialogue], answers: Sequence[Answer]) -> Section:
    right = [number_right(a.text, d.facts["result"]) for d, a in zip(dialogues, answers, strict=True)]
    return {"right": mean(right)}


def _calls(dialogues: Sequence[Dialogue], answers: Sequence[Answer]) -> Section:
    scores, unseen = [], []
    for dialogue, answer in zip(dialogues, answers, strict=True):
        ((name, arguments),) = dialogue.facts["calls"]
        scores.append(score_call(answer.text, dialogue.tools or (), name, arguments))
        unseen.append(name in dialogue.facts["unseen"])
    figures = {key: mean(asdict(score)[key] for score in scores) for key in ("parses", "name", "arguments")}
    apart = {
        label: mean(s.name for s, new in zip(scores, unseen, strict=True) if new == wanted)
        for label, wanted in (("name_unseen_tools", True), ("name_seen_tools", False))
        if wanted in unseen
    }
    return {**figures, **apart}


def _records(dialogues: Sequence[Dialogue], answers: Sequence[Answer]) -> Section:
    scores = [score_extraction(a.text, d.facts["record"]) for d, a in zip(dialogues, answers, strict=True)]
    return {
        "valid": mean(score.valid for score in scores),
        "keys": mean(score.keys for score in scores),
        "values": sum(score.right for score in scores) / sum(score.total for score in scores),
        "values_counted": sum(score.total for score in scores),
    }


def _phrases(dialogues: Sequence[Dialogue], answers: Sequence[Answer]) -> Section:
    """The last line of the answer holds the solution, and nothing of it is left out."""
    right = [
        d.facts["answer"].rstrip(".").lower() in visible(a.text).rpartition("\n")[2].lower()
        for d, a in zip(dialogues, answers, strict=True)
    ]
    return {"right": mean(right)}


SKILLS: dict[str, tuple[Generator, Scorer]] = {
    "arithmetic": (two_operands, _numbers),
    "tools": (four_tools, _calls),
    "extraction": (json_extraction, _records),
    "word_problems": (word_problem, _numbers),
    "puzzles": (thinking, _phrases),
}
"""Skill to its held-out questions and how answers are scored."""


def skill(answerer: Answerer, name: str, settings: SkillSettings, seed: int) -> Section:
    """One skill's figures on `settings.count` held-out questions of this seed."""
    generate, score = SKILLS[name]
    dialogues = [generate(seed, index, "held_out") for index in range(settings.count)]
    answers = answerer.answer_dialogues(dialogues, settings.max_tokens)
    samples = [
        {
            "prompt": dialogue.prompt[-1]["content"],
            "answer": answer.text,
            "expected": dialogue.messages[-1]["content"] or dialogue.messages[-1].get("tool_calls"),
        }
        for dialogue, answer in zip(dialogues[:SAMPLES], answers, strict=False)
    ]
    figures = score(dialogues, answers)
    stops = mean(answer.stopped for answer in answers)
    return {"count": len(dialogues), "seed": seed, **figures, "stops": stops, "samples": samples}

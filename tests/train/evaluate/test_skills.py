"""The skills' sections: an oracle scores fully, an answerer that loops or says nothing does not."""

from __future__ import annotations

import pytest

from paceline.train.data.prompts import Prompt
from paceline.train.evaluate.answering import Answer
from paceline.train.evaluate.skills import SKILLS, bench_answers, skill
from paceline.train.settings.evaluate import SkillSettings, TextSettings
from paceline.train.synth.dialogue import user
from paceline.train.synth.render import pieces


class Scripted:
    """Answers dialogues as it was told to."""

    def __init__(self, write):
        self.write = write

    def answer_dialogues(self, dialogues, max_tokens):
        return [Answer(self.write(dialogue), [1, 2, 3], True) for dialogue in dialogues]


def oracle(dialogue):
    """What the dialogue would teach."""
    return pieces(dialogue)[-2].text


@pytest.mark.parametrize("name", SKILLS)
def test_the_right_answers_score_fully(name):
    found = skill(Scripted(oracle), name, SkillSettings(count=24), seed=5)
    figures = {"right", "parses", "name", "arguments", "valid", "keys", "values", "stops"} & set(found)
    assert {key: found[key] for key in figures} == dict.fromkeys(figures, 1)
    assert len(figures) > 1 and found["count"] == 24 and found["seed"] == 5


@pytest.mark.parametrize("name", SKILLS)
def test_empty_answers_score_nothing(name):
    found = skill(Scripted(lambda dialogue: "<|im_end|>"), name, SkillSettings(count=12), seed=5)
    figures = {"right", "parses", "name", "arguments", "valid", "keys", "values"} & set(found)
    assert {key: found[key] for key in figures} == dict.fromkeys(figures, 0)


def test_the_seed_chooses_the_questions():
    asked = []
    for seed in (1, 1, 2):
        found = skill(Scripted(oracle), "arithmetic", SkillSettings(count=4), seed)
        asked.append([sample["prompt"] for sample in found["samples"]])
    assert asked[0] == asked[1] != asked[2]


def test_calls_tell_unseen_tools_from_seen_ones():
    found = skill(Scripted(oracle), "tools", SkillSettings(count=24), seed=5)
    assert found["name_unseen_tools"] == found["name_seen_tools"] == 1


class Fixed:
    """Gives one prepared answer after the other."""

    def __init__(self, answers):
        self.answers = answers

    def encode(self, messages, tools=None, thinking=False):
        return [len(messages)]

    def answer(self, prompts, max_tokens):
        return self.answers[: len(prompts)]


def test_figures_of_text():
    prompts = [Prompt([user("?")], category=c, name=c) for c in ("prose", "prose", "math", "math")]
    answers = [
        Answer("a", list(range(30)), True),
        Answer("b", [1] * 24, False),
        Answer("c", list(range(10)), True),
        Answer("d", list(range(40)), True),
    ]
    found = bench_answers(Fixed(answers), prompts, TextSettings())
    assert found["stops"] == 0.75 and found["median_tokens"] == 27 and found["count"] == 4
    assert found["repeated"] == 24 / 104
    assert found["categories"]["math"] == {"stops": 1, "median_tokens": 25, "repeated": 0}
    assert found["categories"]["prose"]["stops"] == 0.5

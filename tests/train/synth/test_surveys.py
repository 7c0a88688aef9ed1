"""Texts with several items: what is asked of them comes out right."""

from __future__ import annotations

import json
import re

from paceline.train.synth.comparisons import best
from paceline.train.synth.dialogue import Draw
from paceline.train.synth.entities import entities
from paceline.train.synth.facts import FACTS, extremes, mentions, tables, word_counts
from paceline.train.synth.surveys import SURVEYS, scores, subjects


def draws(count=150):
    return (Draw(4, index, "train", "surveys") for index in range(count))


def test_questions_have_no_gaps_and_are_not_too_long():
    lengths = []
    for make in (*SURVEYS, *FACTS, best, entities):
        for draw in draws(60):
            question, answer = make(draw)
            assert not re.search(r"\{\w+\}|\\n", question) and question.strip() and answer.strip()
            lengths.append(len(question))
    assert max(lengths) < 2000 and sum(lengths) / len(lengths) < 600


def test_there_is_one_score_or_subject_for_every_line():
    for draw in draws():
        for make in (scores, subjects):
            question, answer = make(draw)
            found = json.loads(answer) if answer.startswith("[") else answer.split("\n")
            marked = re.findall(r"^(?:#?\w[.):] |\(\w\) |[-*] )", question, re.M)
            assert len(marked) == len(found)


def test_mentions_counts_and_extremes_are_right():
    for draw in draws():
        question, answer = mentions(draw)
        values = re.compile(r"\$\d+\.\d\d|\d{4}-\d\d-\d\d|[A-Z][a-z]+ \d+, \d{4}")
        assert values.findall(question) == values.findall(answer) != []
        question, answer = word_counts(draw)
        if answer.startswith("{"):
            counts = json.loads(answer)
            assert all(len(re.findall(rf"\b{word}\b", question)) >= n for word, n in counts.items())
        question, answer = extremes(draw)
        assert answer.split(" ")[0] in question


def test_tables_keep_their_cells():
    for draw in draws():
        question, answer = tables(draw)
        for cell in re.findall(r"[A-Z]\w+ [A-Z]\w+|\d{4}", answer):
            assert cell in question


def test_the_best_row_has_the_number_that_is_named():
    for draw in draws():
        question, answer = best(draw)
        listed, told = answer.split(". The ", 1)
        numbers = [float(n) for n in re.findall(r"\$?(\d+(?:\.\d+)?)(?: million)? \(", listed)]
        named = float(re.search(r" is \$?(\d+(?:\.\d+)?)", told)[1])
        low = re.match(r"lowest|smallest", told)
        assert named == (min if low else max)(numbers) and str(named).removesuffix(".0") in question

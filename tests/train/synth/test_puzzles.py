"""Puzzles in many wordings: their answers, checked anew from the questions."""

from __future__ import annotations

import re
from itertools import product

from paceline.train.synth import deduction, islands, lists, situations, words
from paceline.train.synth.dialogue import Draw
from paceline.train.synth.thinking import _DECK


def draws(count=200):
    return (Draw(3, index, "train", "puzzles") for index in range(count))


def test_every_puzzle_has_wordings_and_no_gaps():
    for make in _DECK:
        shapes = set()
        for draw in draws(60):
            made = make(draw)
            text = " ".join(made)
            assert not re.search(r"\{\w*\}|  |\bNone\b", text), made
            assert len(made.question) < 1500, made
            assert made.reasoning.strip() and made.answer.strip()
            shapes.add(made.question)
        assert len(shapes) > 20, make


def test_islanders_have_one_world_that_is_found_last():
    for draw in draws():
        made = islands.islanders(draw)
        steps = made.reasoning.split("\n")
        assert all("does not fit" in step for step in steps[:-1]) and steps[-1].endswith("everything fits.")
        assert made.answer.rstrip(".") in steps[-1]


def test_conclusions_follow_in_all_worlds_or_fail_in_the_one_that_is_named():
    assert all(len(rows) > 30 for rows in deduction._arguments().values())
    worlds = [
        [m for m, there in zip(deduction._MEMBERS, bits, strict=True) if there]
        for bits in product((0, 1), repeat=8)
    ]
    worlds = [w for w in worlds if all(any(m[i] for m in w) for i in range(3))]
    for valid, rows in deduction._arguments().items():
        for first, second, claim in rows[::7]:
            fits = [w for w in worlds if deduction._true(first, w) and deduction._true(second, w)]
            assert fits and all(deduction._true(claim, w) for w in fits) == valid
    answers = [deduction.follows(draw).answer for draw in draws()]
    assert 60 < answers.count("Yes") < 140


def test_third_statements_come_out_in_all_three_ways():
    found = [deduction.third_statement(draw) for draw in draws()]
    verdicts = [made.answer for made in found]
    assert all(verdicts.count(v) > 25 for v in ("true", "false", "uncertain"))
    for made in found:
        assert ("is open." in made.reasoning) or made.answer != "uncertain"
        assert ("is wrong." in made.reasoning) == (made.answer == "false") or "is wrong." in made.reasoning


def test_opinions_are_counted_and_found():
    for draw in draws():
        made = lists.opinions(draw)
        rows = re.findall(r"^\d+\. (.*)$", made.reasoning, re.M)
        if made.answer.isdecimal():
            assert len(rows) == int(made.answer) and all(row in made.question for row in rows)
        else:
            assert made.answer.split()[0].rstrip(",") in made.question


def test_letters_and_sums_are_right():
    for draw in draws():
        made = lists.letters_in_text(draw)
        spelled = re.findall(r"(\w+): ([\w-]+), (\d+)", made.reasoning)
        text = " ".join(word for word, _, _ in spelled)
        assert text in made.question and all(s == "-".join(w) for w, s, _ in spelled)
        assert sum(int(n) for _, _, n in spelled) == int(made.answer)
        legs = lists.more_legs(draw)
        equations = re.findall(r"(\d+ [*+] \d+) = (\d+)", legs.reasoning)
        assert all(eval(left) == int(right) for left, right in equations)
        assert equations[-1][1] == legs.answer
        things = lists.things_of_a_sort(draw)
        left, right = re.search(r": ([\d+ ]+) = (\d+)\.", things.reasoning).groups()
        assert eval(left) == int(right) == int(things.answer)


def test_walks_and_turns_end_where_they_say():
    vectors = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}

    def end(text):
        moves = re.findall(r"(\d+) \w+ (north|east|south|west)", text)
        return tuple(sum(int(n) * vectors[d][i] for n, d in moves) for i in (0, 1))

    for draw in draws():
        made = situations.walk(draw)
        assert end(made.question) == end(made.answer)
        looks = situations.turns(draw)
        assert looks.reasoning.rstrip(".").endswith(looks.answer)


def test_the_right_one_of_the_choices_is_on_offer():
    for draw in draws():
        made = situations.choice(draw)
        assert made.answer in made.question.split("\n") and made.question.count("\n") == 4
        order = situations.ranking(draw)
        names = re.findall(r"^\d+\. (\w+)$", order.reasoning, re.M)
        assert set(names) <= set(words.FEMALE + words.MALE) and order.answer.split(", ")[0] in names

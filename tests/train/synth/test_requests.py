"""Small requests that need no tool: their numbers are right."""

from __future__ import annotations

import re

from paceline.train.synth.dialogue import Draw
from paceline.train.synth.requests import REQUESTS, chances, roots, triangle


def draws(count=200):
    return (Draw(8, index, "train", "requests") for index in range(count))


def test_requests_are_answered_without_gaps():
    for make in REQUESTS:
        texts = set()
        for draw in draws(60):
            question, answer = make(draw)
            assert not re.search(r"\{|\bNone\b|  ", question + answer) and answer
            texts.add(question)
        assert len(texts) > 15


def test_roots_are_zeros():
    for draw in draws():
        _, answer = roots(draw)
        square, four, rest, got = re.search(r"= (\d+) - 4 \* (\d) \* \((-?\d+)\) = (\d+)", answer).groups()
        assert int(square) - 4 * int(four) * int(rest) == int(got)
        for left, right in re.findall(r"x = (\(.*?\) / \d) = (-?\d+)", answer):
            assert eval(left) == int(right)


def test_areas_and_shares_are_right():
    for draw in draws():
        question, answer = triangle(draw)
        (a, b), (c, d), (e, f) = ((int(x), int(y)) for x, y in re.findall(r"\((-?\d+), (-?\d+)\)", question))
        area = abs(a * (d - f) + c * (f - b) + e * (b - d)) / 2
        assert float(answer.rstrip(".").rsplit(" ", 1)[1]) == area
        left, right = re.search(r"and (\d+ \* 100 / \d+) = (\d+)", chances(draw)[1]).groups()
        assert eval(left) == int(right)

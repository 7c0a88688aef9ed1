"""The learning rate and the number of steps are functions of what is configured."""

from __future__ import annotations

import math

import pytest

from paceline.train.loop.schedule import learning_rate, planned_steps, steps_in
from tests.train.loop.tiny import settings


def rates(total, paced=0, **changes):
    chosen = settings(learning_rate=1.0, **changes)
    return [learning_rate(step, total, chosen, paced) for step in range(total)]


def test_cosine_after_a_linear_warm_up():
    expected = [0.25, 0.5, 0.75, 1.0]
    expected += [0.1 + 0.9 * (1 + math.cos(math.pi * i / 12)) / 2 for i in range(12)]
    assert rates(16, warmup_ratio=0.25, min_lr_ratio=0.1) == pytest.approx(expected)


def test_linear_without_warm_up_falls_evenly():
    assert rates(4, warmup_ratio=0.0, schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_steps_that_measured_the_pace_learn_nothing_and_shift_the_rest():
    assert rates(10, paced=4, schedule="linear") == [0.0] * 4 + rates(6, schedule="linear")


def test_a_run_that_is_all_warm_up():
    assert rates(2, warmup_ratio=1.0) == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    "given, world, steps",
    [
        ({"max_steps": 7}, 1, 7),
        ({"max_steps": None, "epochs": 2}, 1, 20),
        ({"max_steps": None, "epochs": 2, "gradient_accumulation": 3}, 1, 7),
        ({"max_steps": None, "epochs": 2, "gradient_accumulation": 2}, 2, 5),
        ({"max_steps": 4, "epochs": 2}, 1, 4),
        ({"max_steps": 100, "epochs": 0.5}, 1, 5),
        ({"max_steps": None, "seconds": 3.0}, 1, None),
        ({"max_steps": None, "epochs": 1e-9}, 1, 1),
    ],
)
def test_the_first_limit_ends_the_run(given, world, steps):
    assert planned_steps(settings(**given), steps_per_epoch=10, world=world) == steps


def test_steps_in_the_seconds_that_are_left():
    assert steps_in(seconds=10.0, pace=0.5, done=20, spent=4.0) == 32
    assert steps_in(seconds=1.0, pace=0.5, done=20, spent=4.0) == 21

"""Timers wrapped around functions from outside: exclusive labels, nothing left behind."""

from __future__ import annotations

import time

from paceline.bench.spans import Spans, replaced


class Base:
    def inherited(self) -> None:
        time.sleep(0.002)


class Machine(Base):
    def step(self) -> None:
        self.outer()
        self.inherited()

    def outer(self) -> None:
        time.sleep(0.002)
        self.inner()

    def inner(self) -> None:
        time.sleep(0.002)


def test_labels_are_exclusive_and_counted_only_inside() -> None:
    spans, machine = Spans(), Machine()
    places = {"outer": [(Machine, "outer")], "inner": [(Machine, "inner")], "more": [(Machine, "inherited")]}
    with spans.watching((Machine, "step"), places):
        machine.step()
        machine.step()
        machine.inner()  # not within a step
    assert dict(spans.calls) == {"outer": 2, "more": 2} and spans.within_calls == 2
    assert spans.seconds["outer"] >= 0.008 and spans.seconds["more"] >= 0.004
    assert sum(spans.seconds.values()) <= spans.within_seconds


def test_the_originals_come_back() -> None:
    before = dict(vars(Machine))
    with Spans().watching((Machine, "step"), {"more": [(Machine, "inherited")]}):
        assert "inherited" in vars(Machine)
    assert dict(vars(Machine)) == before


def test_replaced_restores_after_an_error() -> None:
    machine = Machine()
    try:
        with replaced(machine, inner=lambda: None):
            assert "inner" in vars(machine)
            raise ValueError
    except ValueError:
        pass
    assert "inner" not in vars(machine)

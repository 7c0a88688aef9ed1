"""Idle threads sleep where other work keeps the cores busy, and only then."""

from __future__ import annotations

import sys

import pytest

from paceline.cli import threads


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(threads, "_chosen", False)
    for name in threads._SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("busy", "policy"), [(0.6, "passive"), (0.1, None)])
def test_a_busy_machine_lets_idle_threads_sleep(
    undecided: None, monkeypatch: pytest.MonkeyPatch, busy: float, policy: str | None
) -> None:
    monkeypatch.setattr(threads, "busy_share", lambda: busy)
    # The variable is set for the process; monkeypatch takes it back afterwards.
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    threads.settle_threads()
    assert threads.os.environ.get("OMP_WAIT_POLICY") == policy
    assert bool(threads.threads_line()) == (policy is not None)


def test_the_users_own_setting_stands(undecided: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "busy_share", lambda: 0.9)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    threads.settle_threads()
    assert threads.os.environ["OMP_WAIT_POLICY"] == "active" and not threads.threads_line()


def test_the_share_is_one_of_all_cores() -> None:
    assert 0.0 <= threads.busy_share() <= 1.0


def test_no_machine_to_ask_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_times", lambda: None)
    assert threads.busy_share() == 0.0

"""`paceline train`: flags reach the command's body, bodies load lazily, mistakes are one line."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import paceline.cli.train as group

ROOMS = {"data": "data", "drafter": "draft", "eval": "evaluate", "mtp": "head", "target": "targets"}
CONTINUED = sorted(ROOMS.keys() - {"eval"})


def replaced(monkeypatch, name):
    """Calls of a command's body, which does nothing."""
    calls = []

    def run(config, **flags):
        calls.append((config, flags))
        return 0

    monkeypatch.setattr(importlib.import_module(f"paceline.train.{ROOMS[name]}.command"), "run", run)
    return calls


@pytest.mark.parametrize("name", CONTINUED)
def test_flags_and_the_file_reach_the_body(paceline, monkeypatch, name):
    calls = replaced(monkeypatch, name)
    off = {"plan": False, "as_json": False, "resume": False, "force": False, "device": "auto"}
    assert paceline("train", name, "a.yaml").code == 0
    given = ("--plan", "--json", "--resume", "--device", "cpu")
    assert paceline("train", name, "b.yaml", *given).code == 0
    assert paceline("train", name, "c.yaml", "--force").code == 0
    on = {**off, "plan": True, "as_json": True, "resume": True, "device": "cpu"}
    assert calls == [(Path("a.yaml"), off), (Path("b.yaml"), on), (Path("c.yaml"), {**off, "force": True})]


@pytest.mark.parametrize("name", CONTINUED)
def test_resume_and_force_exclude_each_other(paceline, monkeypatch, name):
    calls = replaced(monkeypatch, name)
    result = paceline("train", name, "a.yaml", "--resume", "--force")
    assert result.code == 2 and result.out == "" and not calls
    assert result.err == "paceline: --resume goes on and --force begins anew: give one of them\n"


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_mistake_in_the_file_is_one_line(paceline, name, lines):
    path = lines("optim: {max_step: 3}")
    result = paceline("train", name, path)
    assert result.code == 2 and len(result.err.splitlines()) == 1
    assert path in result.err


def test_every_sub_command_has_a_body():
    assert set(group.train.commands) == set(ROOMS)
    for room in ROOMS.values():
        assert callable(importlib.import_module(f"paceline.train.{room}.command").run)


def test_eval_takes_a_seed(paceline, monkeypatch):
    calls = replaced(monkeypatch, "eval")
    assert paceline("train", "eval", "a.yaml").code == 0
    assert paceline("train", "eval", "b.yaml", "--seed", "3", "--json", "--device", "cpu").code == 0
    off = {"plan": False, "as_json": False, "device": "auto", "seed": None}
    on = {**off, "as_json": True, "device": "cpu", "seed": 3}
    assert calls == [(Path("a.yaml"), off), (Path("b.yaml"), on)]
    assert paceline("train", "eval", "a.yaml", "--seed", "-1").code == 2


def test_help_loads_no_torch():
    program = (
        "import sys; from paceline.cli.main import main; code = main(['train', 'data', '--help']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "CONFIG.yaml" in result.stdout

"""How the repository is set up, tested and measured: the Makefile, CI, and the versions."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest

from tests.architecture.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def dry(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `make` would run."""
    # A `make test` around this test must not hand its own flags and variables on.
    outer = ("MAKE", "MFLAGS", "OUT", "PROMPTS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return subprocess.run(
        ["make", "-n", "--no-print-directory", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "runs"),
    [("demo", "paceline demo"), ("test", "pytest"), ("test-gpu", "pytest -q -m gpu"), ("types", "mypy")],
)
def test_one_command_does_it_all(target: str, runs: str) -> None:
    out = dry(target, "VENV=nowhere").stdout
    assert "-m venv nowhere" in out and "install --quiet -c constraints.txt -e" in out
    assert runs in out.splitlines()[-1]


def test_the_cpu_benchmark_takes_its_files_from_the_command_line() -> None:
    out = dry("bench-cpu", "OUT=rows.json", "PROMPTS=some.jsonl").stdout
    assert out.splitlines()[-1].endswith('paceline.bench.cpu --out "rows.json" --prompts "some.jsonl"')
    assert "--prompts" not in dry("bench-cpu", "OUT=rows.json").stdout


def test_ci_runs_rules_types_and_tests() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.findall(r"^make \S+ (\w+)$", script, re.M) == ["lint", "types", "test"]
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_requirements_have_lower_bounds_only() -> None:
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]
    assert "torch>=2.11" in wanted and PROJECT["requires-python"] == ">=3.11"
    assert [line for line in wanted if not re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?>=[\d.]+", line)] == []


def test_constraints_name_tested_versions_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+]+", pin)] == []

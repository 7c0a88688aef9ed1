"""`python -m paceline` is the installed command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline import __version__


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--version"], 0, f"paceline {__version__}"),
        (["generate", "--help"], 0, "Usage: paceline generate"),
        (["generat"], 2, "paceline: No such command 'generat'"),
    ],
)
def test_the_module_runs_the_command_line(arguments: list[str], code: int, words: str) -> None:
    command = [sys.executable, "-m", "paceline", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code and words in result.stdout + result.stderr

"""Runs command lines in this process, against the fake engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import paceline as paceline_package
from paceline.cli.main import main
from tests.cli.fake import FakeLLM, Script


@dataclass(frozen=True)
class Result:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script of every engine that a command opens."""
    script = Script()
    # By item: setattr would first load the real one, which is an export that loads at first use.
    monkeypatch.setitem(vars(paceline_package), "LLM", lambda *args, **kw: FakeLLM(script, *args, **kw))
    return script


@pytest.fixture
def paceline(script: Script, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`paceline("generate", "demo", ...)`: exit code, stdout and stderr."""

    def run(*arguments: str) -> Result:
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def lines(tmp_path) -> Callable[..., str]:
    """Write a file of the given lines and return its path."""

    def write(*content: str | bytes) -> str:
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in content))
        return str(path)

    return write

"""The repository as a newcomer finds it: nothing of one machine in it, and every room tested."""

from __future__ import annotations

import re

import pytest

from tests.architecture.tree import PACKAGE, ROOT, rooms, tracked_files

# In pieces, so that this file does not match itself.
MACHINE = re.compile(
    "|".join(
        (
            "/wo" + r"rk/(main|shared|\.)",
            "/ro" + "ot/",
            "/ho" + r"me/[a-z]",
            "/opt/" + "(wheels|pypi)",
            "/tmp/" + "plan",
            r"(pypi|pythonhosted|npmjs)\." + "(org|com)",
            "download" + r"\.pytorch",
        )
    )
)
BINARY = {".safetensors", ".png", ".xz", ".gz"}


def text_files():
    return [path for path in tracked_files() if path.suffix not in BINARY]


def test_no_file_names_a_machine_or_a_registry():
    found = {}
    for path in text_files():
        hit = MACHINE.search(path.read_text(encoding="utf-8", errors="replace"))
        if hit:
            found[str(path.relative_to(ROOT))] = hit.group()
    assert not found


def test_no_unfinished_marks():
    # A mark without a place to follow it up is a promise to nobody.
    marks = re.compile(r"\b(TO" + "DO|FIX" + "ME|XX" + r"X)\b")
    found = [
        str(path.relative_to(ROOT))
        for path in text_files()
        if path.suffix in {".py", ".cpp", ".h"} and marks.search(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize("room", rooms())
def test_every_room_has_tests(room):
    assert list((ROOT / "tests" / room).rglob("test_*.py")), f"src/paceline/{room} has no tests/{room}"


def test_no_package_is_empty():
    for init in PACKAGE.rglob("__init__.py"):
        others = [path for path in init.parent.iterdir() if path.name not in ("__init__.py", "__pycache__")]
        holds_code = '"""' in init.read_text(encoding="utf-8")
        assert others and holds_code, f"{init.parent.relative_to(ROOT)} holds nothing"


@pytest.mark.parametrize(
    "name", ["LICENSE", "NOTICE", "CHANGELOG.md", "README.md", "CONTRIBUTING.md", ".ci/run"]
)
def test_what_a_repository_needs_is_there(name):
    assert (ROOT / name).stat().st_size > 0

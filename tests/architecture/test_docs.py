"""What the documentation says about the code is true: modules exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT, modules, rooms

LIFE = ROOT / "docs" / "life-of-a-request.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(#[^)\s]*)?\)")


def named() -> set[str]:
    """Dotted names in backticks that begin with a room, such as `engine.scheduler`."""
    known = "|".join([*rooms(), "errors"])
    names = re.findall(rf"`((?:{known})(?:\.\w+)*)`", LIFE.read_text(encoding="utf-8"))
    return {name for name in names if not name.endswith(".json")}


def test_the_life_of_a_request_names_only_modules_that_exist():
    missing = [name for name in named() if importlib.util.find_spec(f"paceline.{name}") is None]
    assert not missing


def test_the_life_of_a_request_leaves_no_package_out():
    packages = {
        m.name.removeprefix("paceline.")
        for m in modules()
        if m.path.name == "__init__.py" and m.room and not m.name.endswith(".peers")
    }
    assert packages <= named()


def test_the_life_of_a_request_names_every_module_of_the_engine():
    beside = {"describe", "teacher", "verification"}  # not on a request's way
    engine = {m.name.removeprefix("paceline.") for m in modules() if m.name.startswith("paceline.engine.")}
    assert engine - named() == {f"engine.{name}" for name in beside}


def test_the_generated_reference_is_current():
    command = [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"run `make docs`: {result.stdout}{result.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = [target for target, _ in LINK.findall(page.read_text(encoding="utf-8"))]
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken

"""Files and functions stay small enough to be read in one sitting. C++ kernels may be long."""

from __future__ import annotations

import ast

from tests.architecture.tree import ROOT, modules

FILE_LINES = 300
FUNCTION_LINES = 40
TEST_FILE_LINES = 400

LONG_FUNCTIONS: dict[str, str] = {}
"""`module.py:function` and why it is not shorter in two parts."""


def functions(module):
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node) -> int:
    """Lines from `def` to the end, docstring and signature aside: they explain, they do not branch."""
    body = node.body
    if ast.get_docstring(node) is not None:
        body = body[1:]
    return node.end_lineno - body[0].lineno + 1 if body else 0


def test_files_are_short():
    long = {
        module.short: lines
        for module in modules()
        if (lines := len(module.path.read_text(encoding="utf-8").splitlines())) >= FILE_LINES
    }
    assert not long, f"split along their ideas what has {FILE_LINES} lines or more: {long}"


def test_functions_are_short():
    long = {
        f"{module.short}:{node.name}": length(node)
        for module in modules()
        for node in functions(module)
        if length(node) >= FUNCTION_LINES and f"{module.short}:{node.name}" not in LONG_FUNCTIONS
    }
    assert not long, f"bodies of {FUNCTION_LINES} lines or more: {long}"


def test_no_stale_exceptions():
    long = {f"{m.short}:{n.name}" for m in modules() for n in functions(m) if length(n) >= FUNCTION_LINES}
    assert set(LONG_FUNCTIONS) <= long


def test_test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "tests").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) >= TEST_FILE_LINES
    }
    assert not long, f"test files of {TEST_FILE_LINES} lines or more: {long}"

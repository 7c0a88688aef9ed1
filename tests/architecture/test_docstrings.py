"""Whatever another module may use says what it does: every public module, class, function and method."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import modules

INHERITED = {"override", "overload"}
"""Decorators that say: the contract stands elsewhere."""


def undocumented(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Public classes and functions in `node`, and their public methods, that have no docstring."""
    bases = getattr(node, "bases", [])
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_") or INHERITED & {ast.unparse(d) for d in child.decorator_list}:
            continue
        # A method of a subclass may fulfil a contract that its base has documented.
        if not ast.get_docstring(child) and (isinstance(child, ast.ClassDef) or not bases):
            yield f"{prefix}{child.name}"
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child, f"{prefix}{child.name}.")


def test_public_names_have_docstrings():
    missing = {module.short: names for module in modules() if (names := list(undocumented(module.tree)))}
    assert not missing


def test_modules_have_docstrings():
    assert not [module.short for module in modules() if not ast.get_docstring(module.tree)]

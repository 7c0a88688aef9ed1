"""Imports go one way: from the command line down to the kernels."""

from __future__ import annotations

import ast

from tests.architecture.tree import Module, modules, rooms

LAYERS = (
    ("kernels",),
    ("layers",),
    ("models",),
    ("speculate", "cache"),
    ("backends", "engine"),
    ("serve", "bench", "train", "quantize"),
    ("cli",),
    ("__main__",),
)
"""Lowest first. A room imports from itself and from layers below its own, never from one beside it."""

ANYWHERE = {"config", "errors", "__version__"}
"""Importable from everywhere; they import nothing but each other."""

EXPORTS = {"LLM": "engine", "SamplingParams": "config"}
"""`from paceline import X` stands for an import of the room that X comes from."""

LEVEL = {room: level for level, layer in enumerate(LAYERS) for room in layer}


def imported_rooms(module: Module) -> set[str]:
    """Rooms that a module names in any import, those inside functions and for type checkers included."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.short}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {parts[1] for name in names if (parts := name.split("."))[0] == "paceline" and parts[1:]}
    return {EXPORTS.get(room, room) for room in found}


def allowed(room: str) -> set[str]:
    if room in ANYWHERE:
        return ANYWHERE
    return ANYWHERE | {room} | {other for other, level in LEVEL.items() if level < LEVEL[room]}


def test_imports_go_one_way():
    wrong = {
        module.short: sorted(upward)
        for module in modules()
        if module.room and (upward := imported_rooms(module) - allowed(module.room))
    }
    assert not wrong, f"rooms that these modules must not import from: {wrong}"


def test_every_room_has_its_place():
    assert set(rooms()) - ANYWHERE <= set(LEVEL)

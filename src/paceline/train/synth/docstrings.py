"""Heads of functions as collections of exercises have them: imports, types, docstrings with examples."""

from __future__ import annotations

import re

from paceline.train.synth.dialogue import Draw
from paceline.train.synth.functions import Function

_EXAMPLES = (
    ">>> {c}\n    {r}", ">>> {c}\n    {r}", ">>> {c}\n    {r}", ">>> {c} == {r}", "{c} == {r}", "{c} ➞ {r}",
    "Example: {c} returns {r}", "{c} should return {r}", "e.g. {c} => {r}",
)  # fmt: skip
_REMARKS = (
    "", "", "", "", "\n    The argument is not changed.", "\n    You may assume that the input is valid.",
    "\n    Use no other modules.", "\n    Keep it short.",
)  # fmt: skip


def exercise(draw: Draw, made: Function) -> str:
    """Imports, signature and docstring; the body belongs below it."""
    signature, imports = made.signature, ""
    if draw.chance(0.6) and ("list" in signature or "dict" in signature) and ":" in signature[:-1]:
        signature, imports = _typing(signature)
    calls = [(made.call, made.result), *made.more]
    form = draw.pick(_EXAMPLES)
    shown = "\n".join(f"    {form.format(c=call, r=repr(result))}" for call, result in calls)
    quotes = draw.pick(('"""', '"""', '"""', "'''"))
    begin = draw.pick(("", " ", "\n    "))
    gap = draw.pick(("\n", "\n", "\n\n"))
    return (
        f"{imports}{signature}\n    {quotes}{begin}{made.task}{draw.pick(_REMARKS)}{gap}{shown}\n    {quotes}"
    )


def _typing(signature: str) -> tuple[str, str]:
    """The signature with the types of `typing`, and their import."""
    typed = re.sub(r"(?<=[:>\[] )list\b|(?<=\[)list\b", "List", signature)
    typed = re.sub(r"(?<=[:>] )dict\b", "Dict", typed)
    typed = re.sub(r"(?<=[:>] )tuple\b", "Tuple", typed)
    used = [name for name in ("Dict", "List", "Tuple") if re.search(rf"\b{name}\b", typed)]
    return typed, f"from typing import {', '.join(used)}\n\n\n" if used else ""

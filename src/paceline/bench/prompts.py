"""One prompt of each category, written for a small base model that continues text (no chat format)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CategoryPrompt:
    """A prompt and the kind of text that it asks for; `category` serves as its id."""

    category: str
    text: str


DEMO_PROMPTS = (
    CategoryPrompt(
        "coding",
        "import json\nfrom pathlib import Path\n\n\ndef load_settings(path):\n"
        '    """Return the settings stored in a JSON file.\n\n'
        '    Raise ValueError if the file does not hold an object.\n    """\n',
    ),
    CategoryPrompt(
        "extraction",
        "CREATE TABLE station (name TEXT, line TEXT, opened INTEGER);\n"
        "INSERT INTO station VALUES ('Harbour', 'red', 1954);\n"
        "INSERT INTO station VALUES ('Old Mill', 'blue', 1961);\n"
        "INSERT INTO station VALUES ('Castle Hill', 'red', 1972);\n"
        "INSERT INTO station VALUES (",
    ),
    CategoryPrompt(
        "math",
        "The :mod:`math` module works with whole numbers as well:\n\n"
        "   >>> import math\n   >>> math.gcd(84, 36)\n   12\n   >>> math.factorial(6)\n   720\n   >>> math.",
    ),
    CategoryPrompt(
        "natural",
        "An index makes queries faster because the database does not have to read every row of the table. "
        "To create an index on a column, use the",
    ),
    CategoryPrompt(
        "prose",
        "Miss Carlton had walked twice round the shrubbery before she saw her brother come out of the house; "
        "and as he drew nearer, she could not but observe that",
    ),
    CategoryPrompt(
        "reasoning",
        "If the list is empty, the function returns None. If the list holds one item, it returns that item. "
        "Otherwise",
    ),
)

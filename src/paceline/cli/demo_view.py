"""How `paceline demo` looks in a terminal: each prompt's text as it is written, then the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.bench.prompts import CategoryPrompt

if TYPE_CHECKING:
    from paceline.bench.demo import Row

ABSENT = "–"
HEADINGS = ("tokens/s", "speed-up", "acceptance\nlength", "draft\nacceptance rate", "text\nidentical")


class Transcript:
    """Prints to stdout: a heading a prompt, the streamed text of each run below it, the table at the end."""

    def __init__(self, prompts: Sequence[CategoryPrompt], *, silent: bool = False) -> None:
        self._prompts = {prompt.category: prompt.text for prompt in prompts}
        self._console = Console(highlight=False, quiet=silent)
        self._category: str | None = None

    def start(self, category: str, name: str) -> None:
        """A run begins: its prompt, where it is a new one, and its name."""
        if category != self._category:
            self._category = category
            self._console.print("\n")
            self._console.rule(Text(category, style="bold"))
            self._console.print(Text(self._prompts[category], style="dim"))
        self._console.print(Text(f"\n[{name}] ", style="bold"))

    def write(self, text: str) -> None:
        """New text of the run that was started last."""
        self._console.print(Text(text), end="", soft_wrap=True)

    def finish(self, rows: Sequence[Row], caption: str) -> None:
        """The table over all prompts."""
        self._console.print("\n")
        table = Table(caption=caption, caption_justify="left")
        table.add_column("")
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(
                row.name,
                _number(row.tokens_per_s, ".1f"),
                _number(row.speedup, ".2f", "×"),
                _number(row.acceptance_length, ".2f"),
                _number(row.draft_acceptance_rate, ".0%"),
                _yes(row.text_identical),
            )
        self._console.print(table)
        self._console.print(f"text identical: {_yes(all(row.text_identical for row in rows))}")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return ABSENT if value is None else f"{value:{form}}{unit}"

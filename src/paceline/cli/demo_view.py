"""How `paceline demo` looks in a terminal: answers as they are written, pace of each proposer, a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.bench.prompts import CategoryPrompt

if TYPE_CHECKING:
    from paceline.bench.demo import Row
    from paceline.engine.results import RequestOutput

ABSENT = "–"
HEADINGS = ("tokens/s", "speed-up", "acceptance\nlength", "draft\nacceptance rate", "text\nidentical")


class Transcript:
    """Prints to stdout: a heading a prompt, its plain answer streamed, a line for each proposer, the table at
    the end. A proposer's text is shown where it differs, which must not happen."""

    def __init__(self, prompts: Sequence[CategoryPrompt], *, silent: bool = False) -> None:
        self._prompts = {prompt.category: prompt.text for prompt in prompts}
        self._console = Console(highlight=False, quiet=silent)
        self._category: str | None = None
        self._streamed = False

    def start(self, category: str, name: str) -> None:
        """A run begins: its prompt, where it is a new one, and its name."""
        self._streamed = category != self._category
        if self._streamed:
            self._category = category
            self._console.print("\n")
            self._console.rule(Text(category, style="bold"))
            self._console.print(Text(self._prompts[category], style="dim"))
        self._console.print(Text(f"\n[{name}] ", style="bold"), end="\n" if self._streamed else "")

    def write(self, text: str) -> None:
        """New text of the run that was started last, shown for a prompt's first run."""
        if self._streamed:
            self._console.print(Text(text), end="", soft_wrap=True)

    def end(self, output: RequestOutput, plain: RequestOutput) -> None:
        """The run that was started last is over; `plain`: the prompt's first."""
        if self._streamed:
            return
        if output.token_ids != plain.token_ids:
            self._console.print(Text(f"another text: {output.text}"), soft_wrap=True)
            return
        from paceline.bench.demo import tokens_per_s

        speed, base = (tokens_per_s([one]) for one in (output, plain))
        gain = f", {speed / base:.2f}×" if speed and base else ""
        self._console.print(Text(f"the same {len(output.token_ids)} tokens{gain}"), end="")

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

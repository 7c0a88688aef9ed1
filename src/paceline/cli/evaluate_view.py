"""How an evaluation looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from paceline.quantize.evaluation import Evaluation

ABSENT = "–"


def show(found: Evaluation) -> None:
    """Print every figure to stdout as tables."""
    console = Console(highlight=False, soft_wrap=True)
    tokens = sum(found.windows)
    console.print(Text(f"{found.model} against {found.base}: {tokens} tokens, {found.device}, {found.dtype}"))
    kl, perplexity = found.kl(), found.perplexity()
    console.print(
        _table(
            ("", ""),
            [
                ("KL divergence, mean", _small(kl["mean"])),
                ("median", _small(kl["median"])),
                ("99.9 %", _small(kl["p99_9"])),
                ("top-1 agreement", f"{found.top1_agreement:.2%}"),
                ("perplexity, base", _number(perplexity["base"])),
                ("perplexity, model", _number(perplexity["model"])),
            ],
        )
    )
    positions = [
        (
            f"{row.first}–{row.last}" if row.last > row.first else str(row.first),
            str(row.tokens),
            _small(row.kl_mean),
        )
        for row in found.by_position()
    ]
    console.print(_table(("position", "tokens", "mean KL"), positions))
    if found.groups:
        groups = [(row.name, str(row.tensors), _small(row.kl_mean)) for row in found.groups]
        console.print(_table(("only these of the model", "tensors differ", "mean KL"), groups))
    if found.acceptance is not None:
        console.print(
            _table(("category", "length, base", "model", "rate, base", "model"), _categories(found))
        )


def _categories(found: Evaluation) -> list[tuple[str, ...]]:
    rows = []
    for name, sides in found.categories().items():
        cells = [
            _number(sides[side][key])
            for key in ("acceptance_length", "draft_acceptance_rate")
            for side in ("base", "model")
        ]
        rows.append((name, *cells))
    return rows


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(show_header=any(headings))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _small(value: float) -> str:
    return f"{value:.3e}"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"

"""`paceline inspect`: what a checkpoint is, and what keeps it from loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli import options
from paceline.cli.session import emit
from paceline.models.hub import resolve_model

if TYPE_CHECKING:
    from paceline.quantize.inspect import Inspection


@click.command(short_help="Say what a checkpoint is and what is wrong with it.")
@options.model_argument
@options.json_option
@options.debug_option
def inspect(model: str, as_json: bool) -> int:
    """Say what MODEL is (parts, bytes, formats, multi-token head, drafter fields) and what is wrong with it.

    Exit code 1 if something will not load.
    """
    from paceline.quantize.inspect import inspect as look

    found = look(resolve_model(model))
    emit(found.to_json()) if as_json else _show(found)
    return 0 if found.loads else 1


def _show(found: Inspection) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{found.path}: {found.architecture} ({found.model_type or 'no model_type'})"))
    stated = {key: value for key, value in (found.quantization or {}).items() if value is not None}
    quantization = ", ".join(f"{key} {value}" for key, value in stated.items()) or "none"
    console.print(Text(f"quantisation: {quantization}; multi-token head: {found.mtp}"))
    if found.drafter:
        fields = ", ".join(f"{key} {value}" for key, value in found.drafter.items())
        console.print(Text(f"drafter: {fields}"))
    console.print(_parts(found))
    for problem in found.problems:
        console.print(Text(f"{problem.severity}: {problem.code}: {problem.message}\n  fix: {problem.fix}"))
    console.print("loads" if found.loads else "will not load")


def _parts(found: Inspection) -> Table:
    table = Table("part", "formats")
    for heading in ("parameters", "bytes"):
        table.add_column(heading, justify="right")
    for part in found.parts:
        formats = ", ".join(f"{fmt} {count:,}" for fmt, count in part.formats.items())
        table.add_row(part.name, formats, f"{part.parameters:,}", f"{part.nbytes:,}")
    parameters, nbytes = sum(p.parameters for p in found.parts), sum(p.nbytes for p in found.parts)
    table.add_row("all", "", f"{parameters:,}", f"{nbytes:,}")
    return table

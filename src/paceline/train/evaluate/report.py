"""The report of an evaluation: gathered, shown on a terminal, and turned into a model card's tables.

Figures go one way: from the JSON into text. Nothing in a card is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.errors import CapacityError, ConfigError
from paceline.train.loop.metrics import METRICS
from paceline.train.loop.record import RECORD

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
Report = Mapping[str, Any]


def show(report: Report, console: Console | None = None) -> None:
    """The bars as a table on stdout."""
    table = Table(title=f"{report['model']}, seed {report['seed']}", title_justify="left")
    for heading in ("bar", "value", "limit", "met"):
        table.add_column(heading, justify="left" if heading == "bar" else "right")
    for bar in report["bars"]:
        table.add_row(bar["text"], _figure(bar["value"]), f"{bar['sense']} {bar['limit']:g}", _met(bar))
    console = console or Console()
    console.print(table)
    for line in _acceptance_lines(report):
        console.print(line, markup=False)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _met(bar: Mapping[str, Any]) -> str:
    if bar["met"] is None:
        return bar["reason"] or "–"
    return ("yes" if bar["met"] else "NO") + (f" ({bar['reason']})" if bar["reason"] else "")


def _acceptance_lines(report: Report) -> Iterator[str]:
    for name, by_heat in report["sections"].get("acceptance", {}).items():
        for heat, found in by_heat.items():
            rows = ", ".join(
                f"{category} {row['acceptance_length']:.2f} ({row['tokens_per_pass']:.2f})"
                for category, row in found["categories"].items()
            )
            yield f"{name} at T = {heat}, acceptance length (tokens a pass): {rows}"


def training_runs(runs: Mapping[str, str]) -> dict[str, Any]:
    """What stands in the output folders of training runs: device, versions, time, steps, last loss."""
    found = {}
    for name, folder in runs.items():
        path = Path(folder) / RECORD
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"runs.{name}: {path} cannot be read ({error})", key=f"runs.{name}") from None
        keys = ("started", "finished", "steps", "device", "processes", "versions", "evaluation")
        found[name] = {key: record[key] for key in keys if key in record} | _last_metrics(Path(folder))
    return found


def _last_metrics(folder: Path) -> dict[str, Any]:
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    rows = [row for line in lines if "loss" in (row := json.loads(line))]
    keys = ("step", "loss", "tokens_per_second", "seconds")
    return {"last": {key: rows[-1][key] for key in keys if key in rows[-1]}} if rows else {}


def markdown(report: Report) -> str:
    """The tables of a model card."""
    parts = [_conditions(report), _bar_table(report), _text_table(report)]
    parts += [
        _acceptance_table(report, "acceptance length", "acceptance_length"),
        _acceptance_table(report, "tokens a target pass", "tokens_per_pass"),
    ]
    parts += [_position_table(report), _perplexity_table(report), _run_table(report)]
    return "\n\n".join(part for part in parts if part)


def _conditions(report: Report) -> str:
    where, versions = report["environment"], report["environment"]["versions"]
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"Measured {where['date']} on {where['device']} ({where['cores']} cores, "
        f"{where['threads']} threads); {listed}; seed {report['seed']}; {report['seconds']:.0f} s."
    )


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def _bar_table(report: Report) -> str:
    rows = [
        [bar["text"], _figure(bar["value"]), f"{bar['sense']} {bar['limit']:g}", _met(bar)]
        for bar in report["bars"]
    ]
    return _rows(["what", "measured", "bar", "met"], rows)


def _text_table(report: Report) -> str:
    found = report["sections"].get("answers", {}).get("categories", {})
    rows = [
        [name, f"{row['stops']:.0%}", f"{row['median_tokens']:g}", f"{row['repeated']:.1%}"]
        for name, row in found.items()
    ]
    return _rows(["bench prompts", "ends by itself", "median tokens", "repeated 12-grams"], rows)


def _acceptance_table(report: Report, heading: str, figure: str) -> str:
    """One figure: a row a proposer and temperature, a column a category."""
    found = report["sections"].get("acceptance", {})
    names = sorted({c for by_heat in found.values() for one in by_heat.values() for c in one["categories"]})
    rows = [
        [name, heat, *(_figure(one["categories"].get(c, {}).get(figure)) for c in names)]
        for name, by_heat in found.items()
        for heat, one in by_heat.items()
    ]
    return _rows([heading, "T", *names], rows)


def _position_table(report: Report) -> str:
    rows = [
        [name, heat, " ".join(f"{share:.2f}" for share in one["by_position"])]
        for name, by_heat in report["sections"].get("acceptance", {}).items()
        for heat, one in by_heat.items()
    ]
    return _rows(["share of verifications that accept draft 1, 2, …", "T", "shares"], rows)


def _perplexity_table(report: Report) -> str:
    rows = [
        [name, f"{row['tokens']:,}", f"{row['nat_per_token']:.3f}", f"{row['perplexity']:.1f}",
         f"{row['bits_per_byte']:.3f}"]
        for name, row in report["sections"].get("texts", {}).items()
    ]  # fmt: skip
    return _rows(["held-out text", "tokens", "nat a token", "perplexity", "bits a byte"], rows)


def _run_table(report: Report) -> str:
    rows = []
    for name, run in report["runs"].items():
        last = run.get("last", {})
        rows.append([name, run.get("device", "–"), str(run.get("steps", "–")), run.get("started", "–"),
                     run.get("finished", "–"), _figure(last.get("loss"))])  # fmt: skip
    return _rows(["training run", "device", "steps", "started", "finished", "last loss"], rows)


def write_card(path: Path, report: Report) -> None:
    """Replace what stands between the two marks of a Markdown file. Raises as `read_card`."""
    before, behind = read_card(path)
    write_report(path, f"{before}{BEGIN}\n{markdown(report)}\n{END}{behind}")


def write_report(path: Path, text: str) -> None:
    """Replace a file as a whole, so that a write that fails leaves what stood there; write through a link.

    Raises: CapacityError that names the file.
    """
    special = path.is_symlink() or (path.exists() and not path.is_file())  # such as /dev/stdout
    beside = path if special else path.with_name(f"{path.name}.unfinished")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        if not special:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        raise CapacityError(
            f"{path} cannot be written ({error.strerror or error}): make room, or give another file"
        ) from error


def read_card(path: Path) -> tuple[str, str]:
    """What stands before and behind the two marks of a Markdown file.

    Raises: ConfigError where it cannot be read or lacks the marks.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"card: {path} does not exist; write its text first", key="card") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"card: {path} cannot be read ({error})", key="card") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"card: {path} lacks the lines {BEGIN} and {END}; put them in", key="card")
    return before, behind

"""From rows to something to read: a table on the terminal, and a dated Markdown report.

`python -m paceline.bench.report FILE.json > docs/benchmarks/DATE_MACHINE.md`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paceline.bench.goals import describe
from paceline.bench.rows import Row

_VERDICTS = {True: "yes", False: "**no**", None: "–"}


def terminal(rows: Iterable[Row]) -> str:
    """One line a row; below one that knows where a step's time goes, its acceptance and that split."""
    return "\n".join(line for row in rows for line in (describe(row), *_split(row.detail)))


def _split(detail: dict[str, Any]) -> Iterable[str]:
    if "split" not in detail:
        return
    yield f"  at acceptance length {detail['acceptance_length']:.3g}; milliseconds of a step:"
    for side, parts in detail["split"].items():
        times = ", ".join(f"{label} {ms:.3g}" for label, ms in parts["ms_per_step"].items())
        yield f"  {side}: {times} (over {parts['steps']} steps)"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The report of one run, from the rows of its JSON file."""
    env = rows[0]["env"] if rows else {}
    parts = [
        f"# {env.get('title', 'CPU figures')}, {env.get('date', 'undated')[:10]}",
        _machine(env),
        "## Rows",
        _table(rows),
        "Value: median of the repetitions' own values. Spread: the lowest and the highest of them.",
        *(_section(row) for row in rows),
    ]
    return "\n\n".join(parts) + "\n"


def _machine(env: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in env.get("versions", {}).items() if version)
    kernels = ", ".join(f"{op}: {kind}" for op, kind in env.get("kernels", {}).items())
    caches = ", ".join(f"{name} {size}" for name, size in env.get("caches", {}).items())
    lines = {
        "Machine": f"{env.get('cpu')}; {env.get('usable_cores')} usable cores; "
        f"{', '.join(env.get('cpu_features', []))}; {caches}; {env.get('memory_gib')} GiB; "
        f"memory reads {env.get('memory_read_gb_per_s')} GB/s",
        "Software": f"{env.get('system')}; Python {env.get('python')}; {versions}",
        "Commit": env.get("commit"),
        "Kernels": kernels,
        "Threads": f"{env.get('threads')} (torch); settings: {_settings(env)}",
        "Load average at start": env.get("load_average"),
    }
    return "\n".join(f"- {name}: {value}" for name, value in lines.items())


def _settings(env: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in env.get("settings", {}).items()) or "defaults"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| row | value | target | met | spread | repetitions |", "|---|---|---|---|---|---|"]
    for row in rows:
        value = "null" if row["value"] is None else f"{row['value']:.4g}"
        spread = "–" if row["spread"] is None else f"{row['spread'][0]:.3g} … {row['spread'][1]:.3g}"
        target = f"{row['sense']} {row['target']}"
        lines.append(
            f"| {row['title']} | {value} | {target} | {_VERDICTS[row['met']]} | {spread} | {row['reps']} |"
        )
    return "\n".join(lines)


def _section(row: dict[str, Any]) -> str:
    reason = f"{row['reason']}\n\n" if row["reason"] else ""
    detail = "\n".join(_bullets(row["detail"]))
    return f"### {row['name']}\n\n{reason}{detail}".rstrip()


def _bullets(value: dict[str, Any], depth: int = 0) -> Iterable[str]:
    for name, entry in value.items():
        indent = "  " * depth
        label = name.replace("_", " ")
        if isinstance(entry, dict) and any(isinstance(inner, dict) for inner in entry.values()):
            yield f"{indent}- {label}:"
            yield from _bullets(entry, depth + 1)
        else:
            yield f"{indent}- {label}: {_plain(entry)}"


def _plain(entry: Any) -> str:
    """A value on one line."""
    if isinstance(entry, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in entry.items())
    if isinstance(entry, list):
        return ", ".join(_plain(inner) for inner in entry) or "none"
    return f"{entry:.4g}" if isinstance(entry, float) else str(entry)


def main(arguments: Sequence[str]) -> int:
    """Print the Markdown report of a JSON file."""
    if len(arguments) != 1:
        print("usage: python -m paceline.bench.report FILE.json", file=sys.stderr)
        return 2
    print(markdown(json.loads(Path(arguments[0]).read_text(encoding="utf-8"))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

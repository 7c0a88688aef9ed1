"""`paceline demo`: the embedded model answers, plain and with each proposer; a table says what was gained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from paceline.bench.prompts import DEMO_PROMPTS, CategoryPrompt
from paceline.cli import options
from paceline.cli.demo_view import Transcript
from paceline.cli.inputs import is_text
from paceline.cli.session import cost_line, emit, notice, open_llm
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline import SamplingParams
    from paceline.bench.demo import DemoRun, Row
    from paceline.bench.rows import Row as BenchRow

SEED = 0
TITLES = {
    "tokens_per_s": "tokens/s",
    "speedup": "speed-up",
    "acceptance_length": "acceptance length",
    "draft_acceptance_rate": "draft acceptance rate",
}


@click.command(short_help="See it work: the embedded model, plain and with each proposer.")
@click.option("--prompt", metavar="TEXT", help="Your own text instead of the six prompts.")
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=96, show_default=True, metavar="N",
    help="Most tokens of each completion.",
)  # fmt: skip
@click.option(
    "--temperature", type=float, default=0.0, show_default=True, metavar="T",
    help="0 is greedy; at any temperature the text is the same with and without drafts.",
)  # fmt: skip
@options.json_option
@options.debug_option
def demo(prompt: str | None, max_tokens: int, temperature: float, as_json: bool) -> int:
    """Let the embedded model answer one question of each category: plain, n-gram, MTP, DFlash.

    Exit code 1 if any text differs from the plain one.
    """
    from paceline.bench.demo import PROPOSERS, measure
    from paceline.config import SamplingParams

    if prompt is not None and not is_text(prompt):
        raise ConfigError("--prompt is not UTF-8", key="prompt")
    prompts = DEMO_PROMPTS if prompt is None else (CategoryPrompt("yours", prompt),)
    params = SamplingParams(temperature=temperature, seed=SEED, max_tokens=max_tokens)
    view = Transcript(prompts, silent=as_json)
    notice("loading the embedded model")
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(closing(open_llm("demo", config, max_num_seqs=1)))
            for name, config in PROPOSERS.items()
        }
        determinism = engines["plain"].determinism()
        notice("warming up, then every prompt runs plain and with each proposer, one at a time")
        run = measure(engines, prompts, params, view.start, view.write, view.end)
    rows = run.rows()
    if as_json:
        emit(_as_json(run, {"determinism": determinism, **_shown(params)}))
    else:
        what = f"{len(prompts)} prompt{'s' * (len(prompts) > 1)}, one at a time, {max_tokens} tokens at most"
        view.finish(rows, f"{what}, temperature {temperature:g}, seed {SEED}; {cost_line(determinism)}")
    return 0 if all(row.text_identical for row in rows) else 1


def _shown(params: SamplingParams) -> dict[str, Any]:
    return params.model_dump(include={"temperature", "seed", "max_tokens"})


def _as_json(run: DemoRun, settings: dict[str, Any]) -> dict[str, Any]:
    """Every figure as a benchmark's row, the table over all prompts and for each of them, all completions."""
    from paceline.bench.machine import environment

    env = environment()
    return {
        "settings": settings,
        "env": env,
        "rows": [figure.to_json(env) for row in run.rows() for figure in _figures(row)],
        "table": [asdict(row) for row in run.rows()],
        "prompts": [
            {
                "category": prompt.category,
                "prompt": prompt.text,
                "table": [asdict(row) for row in run.rows(index)],
                "outputs": {name: outputs[index].to_json() for name, outputs in run.outputs.items()},
            }
            for index, prompt in enumerate(run.prompts)
        ],
    }


def _figures(row: Row) -> Iterator[BenchRow]:
    """A line of the table as rows of a benchmark; only identity has a target, as one run judges no speed."""
    from paceline.bench.rows import Row as BenchRow
    from paceline.bench.rows import missing

    values = asdict(row)
    for key, title in TITLES.items():
        name, what = f"{row.name}_{key}", f"{title}, {row.name}"
        if values[key] is None:
            yield missing(name, what, None, ">=", "nothing was drafted, or nothing was timed")
        else:
            yield BenchRow(name, what, values[key], None, reps=1)
    same = row.text_identical
    yield BenchRow(
        f"{row.name}_text_identical", f"text identical, {row.name}", float(same), 1.0, "==", met=same, reps=1
    )

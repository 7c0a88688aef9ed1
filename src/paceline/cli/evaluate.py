"""`paceline evaluate`: what a quantised model lost against the one that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.bench.prompts import DEMO_PROMPTS
from paceline.cli import options
from paceline.cli.evaluate_view import show
from paceline.cli.inputs import BadLine, parse_speculative, read_prompts
from paceline.cli.progress import progress_bar
from paceline.cli.session import emit, notice
from paceline.config import ModelConfig
from paceline.errors import RequestError

if TYPE_CHECKING:
    from paceline.quantize.acceptance import Question


@click.command(short_help="Say what a quantised model lost against its base.")
@options.model_argument
@click.option("--against", required=True, metavar="BASE", help="The model that MODEL was made from.")
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="Plain text to compare distributions on. Absent: the prompts and BASE's greedy answers to them.",
)  # fmt: skip
@options.prompts_option
@options.speculative_option(required=False)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, metavar="N",
    help="Most tokens of an answer.",
)  # fmt: skip
@options.config_option(ModelConfig, "device")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw KL into this file.")
@options.json_option
@options.debug_option
def evaluate(
    model: str,
    against: str,
    text: str | None,
    prompts: str | None,
    speculative_config: str | None,
    max_tokens: int,
    device: Any,
    plot: str | None,
    as_json: bool,
) -> int:
    """Compare MODEL with BASE: KL divergence, top-1 agreement, perplexity, acceptance of drafts.

    Distributions are compared over the full vocabulary. Acceptance by `category` of the prompts is measured
    where --speculative-config names a proposer; an MTP head is each model's own.
    """
    from paceline.quantize.evaluate import EvaluateOptions
    from paceline.quantize.evaluate import evaluate as run
    from paceline.quantize.evaluation_plot import check_plot_path, write_plot

    if plot is not None:
        check_plot_path(Path(plot))
    speculative = None if speculative_config is None else parse_speculative(speculative_config)
    if prompts is not None and text is not None and speculative is None:
        notice("--prompts has no effect: --text is compared, and no --speculative-config asks for drafts")
    chosen = EvaluateOptions(
        text=None if text is None else Path(text),
        questions=_questions(prompts),
        speculative=speculative,
        max_tokens=max_tokens,
        device=device or "auto",
    )
    with progress_bar() as advance:
        found = run(model, against, chosen, advance)
    if plot is not None:
        write_plot(Path(plot), found)
        notice(f"plot written to {plot}")
    emit(found.to_json()) if as_json else show(found)
    return 0


def _questions(path: str | None) -> list[Question]:
    """The file's prompts, every line of which must be sound, or else the demo's own six."""
    from paceline.quantize.acceptance import Question

    if path is None:
        return [Question(prompt.category, prompt.category, prompt.text) for prompt in DEMO_PROMPTS]
    questions = []
    for entry in read_prompts(path):
        if isinstance(entry, BadLine):
            raise RequestError(f"{path}: {entry.error}", param="prompts")
        questions.append(Question(str(entry.id), entry.category, entry.text))
    return questions

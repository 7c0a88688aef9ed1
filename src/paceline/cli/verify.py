"""`paceline verify`: proves for one model, proposer and machine that speculation leaves the text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paceline.bench.prompts import DEMO_PROMPTS
from paceline.cli import options
from paceline.cli.inputs import BadLine, Prompt, parse_speculative, read_prompts
from paceline.cli.session import cost_line, emit, notice, open_llm
from paceline.config import EngineConfig, ModelConfig
from paceline.errors import RequestError

if TYPE_CHECKING:
    from paceline import LLM
    from paceline.engine.verification import Verification


@click.command(short_help="Prove that speculation leaves the text alone.")
@options.model_argument
@options.speculative_option(required=True)
@options.prompts_option
@click.option("--temperature", type=float, default=0.0, show_default=True, metavar="T", help="0 is greedy.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Run seeds 0 to N-1.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="B",
    help="Sequences that run at once.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, metavar="N",
    help="Most tokens of a completion.",
)  # fmt: skip
@options.config_option(ModelConfig, "dtype")
@options.config_option(ModelConfig, "device")
@options.config_option(ModelConfig, "quantization")
@options.config_option(ModelConfig, "quantized_weights")
@options.config_option(EngineConfig, "deterministic")
@options.json_option
@options.debug_option
def verify(
    model: str,
    speculative_config: str,
    prompts: str | None,
    temperature: float,
    seeds: int,
    batch: int,
    max_tokens: int,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run MODEL plain and speculative over the same prompts and seeds, and compare token ids.

    Exit code 0: identical, with drafts accepted and drafts rejected; 1: a divergence; 2: bad input;
    3: nothing proven, as no draft was accepted or none rejected.
    """
    from paceline.engine.verification import Plan, verify_model

    speculative = parse_speculative(speculative_config)
    plan = Plan(seeds=seeds, temperature=temperature, max_tokens=max_tokens)
    chosen = _prompts(prompts)

    def open_engine(speculative: dict[str, Any] | None, **overrides: Any) -> LLM:
        llm = open_llm(model, speculative, **{**settings, "max_num_seqs": batch, **overrides})
        if speculative is not None and not as_json:
            notice(cost_line(llm.determinism()))
        return llm

    result = verify_model(open_engine, speculative, chosen, plan)
    emit(result.to_json()) if as_json else _print(result)
    return result.exit_code


def _prompts(path: str | None) -> dict[str, str]:
    """Text by id: the file's, every line of which must be sound, or else the demo's own six."""
    if path is None:
        return {prompt.category: prompt.text for prompt in DEMO_PROMPTS}
    entries = read_prompts(path)
    for entry in entries:
        if isinstance(entry, BadLine):
            raise RequestError(f"{path}: {entry.error}", param="prompts")
    return {str(entry.id): entry.text for entry in entries if isinstance(entry, Prompt)}


def _print(result: Verification) -> None:
    """The verdict in words, divergences first."""
    for d in result.divergences:
        verdict = "a tie within rounding" if d.within_tolerance else "DIFFERENT"
        scores = "" if d.scores is None else f", scores {d.scores[0]:.6g} and {d.scores[1]:.6g}"
        print(
            f"{verdict}: prompt {d.prompt}, seed {d.seed}, position {d.position}: "
            f"plain {d.tokens[0]}, speculative {d.tokens[1]}{scores}"
        )
    windows = result.windows
    print(
        f"{result.prompts} prompts × {result.seeds} seeds, {result.mode}: "
        f"{result.num_drafts} verifications, {result.num_accepted_tokens} drafts accepted "
        f"({windows['full']} windows fully, {windows['partial']} partly, {windows['none']} not at all)"
    )
    print(f"text identical: {'yes' if result.identical else 'no'}")
    if result.identical and not result.proven:
        missing = "accepted" if result.num_accepted_tokens == 0 else "rejected"
        print(f"nothing proven: no draft was {missing}; use more prompts, seeds or tokens")

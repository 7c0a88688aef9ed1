"""`paceline train`: one sub-command a thing to train; each body lives in `train.<room>.command`.

Every body is ``run(config: Path, *, plan: bool, as_json: bool, resume: bool, force: bool, device: str)``;
`device` is ``auto``, ``cpu`` or ``cuda``. Of `eval`: ``run(config, *, plan, as_json, device, seed)``, seed
an int or None. It returns the exit code. Results go to stdout, progress to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli import options
from paceline.errors import ConfigError

_DEVICES = ("auto", "cpu", "cuda")
_DEVICE_HELP = "Where to compute. Default: auto, a GPU if there is one."

_common = options.apply(
    click.argument("config", metavar="CONFIG.yaml", type=click.Path(path_type=Path)),
    click.option("--plan", is_flag=True, help="Say what would be done, with memory and time, and exit."),
    click.option("--device", type=click.Choice(_DEVICES), default="auto", help=_DEVICE_HELP),
    options.json_option,
    options.debug_option,
)
_continued = options.apply(
    click.option("--resume", is_flag=True, help="Go on where a stopped run of the same settings left off."),
    click.option("--force", is_flag=True, help="Begin anew where a run has left its outputs."),
)


@click.group(short_help="Train drafters, heads and small targets; evaluate them.")
def train() -> None:
    """Train drafters and heads for any target, from its own answers, and judge them as they will serve.

    Each command reads one YAML file; an unknown key is an error that names the nearest one.
    """


@train.command(short_help="Let a target answer prompts: what drafters learn from.")
@_common
@_continued
def data(config: Path, **flags: Any) -> int:
    """Write the target's own answers to the prompts that CONFIG.yaml names, as sharded JSON lines."""
    from paceline.train.data.command import run

    return run(config, **_agreeing(flags))


@train.command(short_help="Train a DFlash drafter.")
@_common
@_continued
def drafter(config: Path, **flags: Any) -> int:
    """Train a DFlash drafter on a target's own answers; last/ and best/ go into --speculative-config."""
    from paceline.train.draft.command import run

    return run(config, **_agreeing(flags))


@train.command(short_help="Train a multi-token-prediction head.")
@_common
@_continued
def mtp(config: Path, **flags: Any) -> int:
    """Train a target's MTP head on its own answers, fed back as at serving."""
    from paceline.train.head.command import run

    return run(config, **_agreeing(flags))


@train.command("eval", short_help="Measure a target's answers, skills and proposers.")
@_common
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N",
    help="Of the held-out questions and of sampling. Default: the file's `seed`.",
)  # fmt: skip
def evaluate(config: Path, **flags: Any) -> int:
    """Measure how a target answers: bench prompts, generated held-out questions, acceptance of proposers.

    Writes one JSON report, shows its bars, and fills the tables of a model card.
    """
    from paceline.train.evaluate.command import run

    return run(config, **flags)


@train.command(short_help="Train a small hybrid from text and dialogues.")
@_common
@_continued
def target(config: Path, **flags: Any) -> int:
    """Train a small hybrid (gated delta rule and gated attention) from text and dialogues."""
    from paceline.train.targets.command import run

    return run(config, **_agreeing(flags))


def _agreeing(flags: dict[str, Any]) -> dict[str, Any]:
    if flags["resume"] and flags["force"]:
        raise ConfigError("--resume goes on and --force begins anew: give one of them", key="resume")
    return flags

"""Dialogues made by rule as JSON lines, whole or without their last answers.

    python -m paceline.train.synth.generate OUT.jsonl --count 70000 --seed 7
    python -m paceline.train.synth.generate OUT.jsonl --count 70000 --weights math=2 code=1 --questions

`paceline train target` makes such dialogues itself (`synth`). As lines they can be what `longer` puts behind
a conversation, or what `paceline train data` asks.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, explained
from paceline.train.synth.curate import as_line, write_lines
from paceline.train.synth.dialogue import Generator
from paceline.train.synth.mix import WEIGHTS, Mix
from paceline.train.synth.prose import Continuations


def lines(mix: Mix, count: int, questions: bool) -> Iterator[dict[str, Any]]:
    """The first `count` dialogues of a mix."""
    for index in range(count):
        dialogue = mix.at(index)
        yield as_line(dialogue, dialogue.prompt if questions else dialogue.messages)


def _shares(given: list[str]) -> dict[str, float]:
    """`name=share` words. Raises: ConfigError for one that is not."""
    shares = {}
    for word in given:
        name, _, share = word.partition("=")
        try:
            number = float(share)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or name in shares:
            raise ConfigError(f"--weights {word}: write NAME=SHARE, each name once", key="weights")
        shares[name] = number
    return shares


def _mix(seed: int, given: list[str], novels: list[Path]) -> Mix:
    """The mix that was asked for. Raises: ConfigError for weights and novels that cannot be had."""
    extra: dict[str, Generator] = {}
    if novels:
        try:
            extra["prose"] = Continuations([path.read_text(encoding="utf-8") for path in novels])
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"cannot read a novel: {exc}", key="novel") from exc
    weights = _shares(given) or dict(WEIGHTS)
    if novels and not weights.get("prose"):
        raise ConfigError("--novel has no effect without --weights prose=SHARE", key="novel")
    return Mix(seed, weights, extra=extra)


@explained
def main(argv: list[str] | None = None) -> int:
    """Write the file; 0, or 2 with a line that says what is wrong."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("out", type=Path)
    p.add_argument("--count", type=int, default=70_000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--weights", nargs="+", metavar="NAME=SHARE", default=[], help="absent: the standard mix")
    p.add_argument("--novel", type=Path, action="append", default=[], help="text of a novel, for prose")
    p.add_argument("--questions", action="store_true", help="leave out the last answers")
    a = p.parse_args(argv)
    if a.count < 1:
        p.error("--count: at least 1")
    made = write_lines(a.out, lines(_mix(a.seed, a.weights, a.novel), a.count, a.questions))
    print(f"{a.out}: {made} dialogues")
    return 0


if __name__ == "__main__":
    sys.exit(main())

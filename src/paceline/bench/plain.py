"""Plain decoding against peers: the same weights, prompts and lengths, one run after the other.

A decode rate is what is left after the prompt: the time of a long answer less that of a short one, over the
tokens between them. That is the same for every engine, whatever it reports about itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from paceline.bench.peers.base import Engine, NotMeasured, TokenPrompts
from paceline.bench.rows import Row, from_repetitions, interleave, rounded, summary

SHORT, LONG = 16, 112
PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Contest:
    """One row to be: ours against a peer on a batch of prompts."""

    name: str
    title: str
    prompts: TokenPrompts
    target: float


def decode_rate(engine: Engine, prompts: TokenPrompts) -> float:
    """Tokens a second of all sequences together, prompt processing taken out; NotMeasured in all too noisy
    conditions."""
    short = engine.seconds(prompts, SHORT)
    long = engine.seconds(prompts, LONG)
    if long <= short:  # without this, two noisy times would make an absurd rate, and a row that is "met"
        raise NotMeasured(
            f"the machine is not quiet: {LONG} tokens took {engine.name} {long:.2f} s, "
            f"and {SHORT} tokens {short:.2f} s"
        )
    return (LONG - SHORT) * len(prompts) / (long - short)


def compare(ours: Engine, peer: Engine, contest: Contest, reps: int, step_bytes: int | None = None) -> Row:
    """Our rate over the peer's: the median of the repetitions' ratios. `step_bytes`: weights a step reads.

    Raises PeerUnavailable when the peer gives up on the way.
    """
    for engine in (ours, peer):  # compile, allocate, page in: not timed
        engine.seconds(contest.prompts, SHORT)
    sides = (ours, peer)
    rates = interleave(reps, [partial(decode_rate, side, contest.prompts) for side in sides])
    ratios = [mine / theirs for mine, theirs in zip(*rates, strict=True)]
    batch = len(contest.prompts)
    detail: dict[str, Any] = {
        "batch": batch,
        "prompt_tokens": len(contest.prompts[0]),
        "answer_tokens": [SHORT, LONG],
        "tokens_per_s": {side.name: summary(found) for side, found in zip(sides, rates, strict=True)},
        "step_ms": {
            side.name: rounded(1000 * batch / median(found)) for side, found in zip(sides, rates, strict=True)
        },
        "peer": peer.environment(),
    }
    if step_bytes:
        steps = median(rates[0]) / batch
        detail["weights_read_gb_per_s"] = rounded(steps * step_bytes / 1e9)
    return from_repetitions(contest.name, contest.title, ratios, contest.target, ">=", detail)

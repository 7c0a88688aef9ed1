"""The bars: what the demo must reach, read off the sections of a report."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

FOUR = ("coding", "math", "reasoning", "extraction")
"""Categories of prompts over which acceptance is averaged; prose has a bar of its own."""
_HOLDS = {">=": operator.ge, "<=": operator.le}
Sections = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure and its limit."""

    name: str
    text: str
    limit: float
    read: Callable[[Sections], float | None]
    """The figure of a report's sections; None where it was not measured."""
    sense: str = ">="
    gated: bool = False
    """Counts only while the answers neither loop nor run on: a looping model is easy to predict."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar and what was measured."""

    bar: Bar
    value: float | None
    met: bool | None
    """None where nothing was measured."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data for the report."""
        return {
            "name": self.bar.name, "text": self.bar.text, "value": self.value, "sense": self.bar.sense,
            "limit": self.bar.limit, "met": self.met, "reason": self.reason,
        }  # fmt: skip


def _at(*path: str) -> Callable[[Sections], float | None]:
    def read(sections: Sections) -> float | None:
        found: Any = sections
        for key in path:
            if not isinstance(found, Mapping) or key not in found:
                return None
            found = found[key]
        return None if found is None else float(found)

    return read


def lengths(sections: Sections, proposer: str, figure: str = "acceptance_length") -> dict[str, float]:
    """Greedy acceptance length by category of one proposer; empty where it was not measured."""
    found = sections.get("acceptance", {}).get(proposer, {}).get("0.0", {})
    return {name: row[figure] for name, row in found.get("categories", {}).items()}


def _four(proposer: str) -> Callable[[Sections], float | None]:
    def read(sections: Sections) -> float | None:
        found = lengths(sections, proposer)
        return mean(found[name] for name in FOUR) if set(FOUR) <= set(found) else None

    return read


def _prose(sections: Sections) -> float | None:
    return lengths(sections, "dflash").get("prose")


def _over_ngram(sections: Sections) -> float | None:
    """The mean lead of DFlash over n-gram in all categories but extraction.

    In tokens of a target pass: n-gram's acceptance length counts only passes for which it found a draft.
    """
    ours, theirs = (lengths(sections, name, "tokens_per_pass") for name in ("dflash", "ngram"))
    names = (ours.keys() & theirs.keys()) - {"extraction"}
    return mean(ours[name] - theirs[name] for name in names) if names else None


BARS = (
    Bar("stops", "bench prompts whose answer ends by itself", 0.95, _at("answers", "stops")),
    Bar("length", "median answer, tokens", 25, _at("answers", "median_tokens")),
    Bar("repetition", "output tokens inside a repeated 12-gram", 0.15, _at("answers", "repeated"), "<="),
    Bar("arithmetic", "right results of + and - with 2-3 digits, unseen pairs", 0.60,
        _at("arithmetic", "right")),
    Bar("tool_name", "calls that parse and name the right tool", 0.80, _at("tools", "name")),
    Bar("tool_arguments", "calls with the right arguments too", 0.60, _at("tools", "arguments")),
    Bar("extraction_keys", "extractions that are JSON with the right keys", 0.80, _at("extraction", "keys")),
    Bar("extraction_values", "extracted values that are right", 0.70, _at("extraction", "values")),
    Bar("dflash_four", "DFlash acceptance length: coding, math, reasoning, extraction", 3.0,
        _four("dflash"), gated=True),
    Bar("dflash_prose", "DFlash acceptance length: prose", 1.8, _prose, gated=True),
    Bar("mtp_four", "MTP acceptance length: the same four", 2.2, _four("mtp"), gated=True),
    Bar("dflash_over_ngram", "DFlash over n-gram outside extraction, tokens a pass", 0.5,
        _over_ngram, gated=True),
)  # fmt: skip
_GATE = ("stops", "length", "repetition")


def judge(sections: Sections) -> list[Verdict]:
    """Every bar's verdict, in the order of `BARS`."""
    verdicts: dict[str, Verdict] = {}
    for bar in BARS:
        value = bar.read(sections)
        if value is None:
            verdicts[bar.name] = Verdict(bar, None, None, "not measured")
            continue
        met, reason = bool(_HOLDS[bar.sense](value, bar.limit)), ""
        failed = [name for name in _GATE if not verdicts[name].met] if bar.gated else []
        if failed:
            met, reason = False, f"does not count: {', '.join(failed)}"
        verdicts[bar.name] = Verdict(bar, value, met, reason)
    return list(verdicts.values())

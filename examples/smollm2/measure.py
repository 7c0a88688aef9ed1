"""What drafting gains on a model: acceptance and pace by category, at several temperatures.

    python examples/smollm2/measure.py MODEL --drafter FOLDER --out figures.json

The same prompts are answered plainly, with n-gram look-up and with the drafter, one at a time, by the engine
that serves (`dflash alone`: without `prompt_lookup`). The texts must be the same, and they must be worth
predicting: a model that loops is easy to guess. So the share of tokens inside a repeated 12-gram and the
median length stand beside acceptance, and `without loops` has the acceptance length of the answers alone that
do not loop, and how many those are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from paceline import LLM, SamplingParams
from paceline.bench.machine import environment
from paceline.bench.workload import Prompt, read_prompts
from paceline.engine.results import RequestOutput, SpeculationStats
from paceline.errors import explained
from paceline.train.data.filters import repeated_share

PROMPTS = Path(__file__).parents[2] / "src/paceline/bench/prompts.jsonl"
FOUR = ("coding", "math", "reasoning", "extraction")
ALL, MEAN_OF_FOUR = "all", "mean of four"
LOOPED, SHORT = 0.15, 25  # more repetition or a shorter median: the figures do not count
HEADINGS = (
    "T",
    "method",
    "category",
    "accept. length",
    "rate",
    "without loops",
    "tokens/s",
    "speed-up",
    "looped",
    "median",
    "same text",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One method on the prompts of one category."""

    temperature: float
    method: str
    category: str
    acceptance_length: float | None
    acceptance_rate: float | None
    accepted_at: list[float]
    """Share of verifications that accepted draft 1, 2, ..."""
    unlooped_length: float | None
    """Acceptance length of those answers alone that repeat no more than `LOOPED` of themselves."""
    unlooped: int
    """How many those are."""
    tokens_per_second: float
    """Tokens after each answer's first over the time that they took."""
    speed_up: float
    looped: float
    """Share of all output tokens inside a 12-gram that its answer holds twice."""
    median_tokens: float
    identical: float
    """Share of answers with the ids of the plain ones."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@explained
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the file."""
    options = _parser().parse_args(argv)
    prompts = _chosen(read_prompts(options.prompts), options.per_category)
    rows = list(measure(options, prompts))
    for line in _table(rows):
        print(line)
    if options.out:
        found = {"figures": [row.to_json() for row in rows], "env": environment()}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(options: argparse.Namespace, prompts: list[Prompt]) -> Iterator[Figures]:
    """Every temperature and method; the plain run comes first and is what the others are held against."""
    methods: dict[str, dict[str, Any] | None] = {"plain": None, "ngram": {"method": "ngram"}}
    if options.drafter:
        drafter = {"method": "dflash", "model": str(options.drafter)}
        methods |= {"dflash": drafter, "dflash alone": drafter | {"prompt_lookup": False}}
    for temperature in options.temperatures:
        plain: list[RequestOutput] = []
        for method, speculative in methods.items():
            print(f"T = {temperature:g}, {method}", file=sys.stderr, flush=True)
            outputs = _answers(options, prompts, speculative, temperature)
            plain = plain or outputs
            yield from _by_category(temperature, method, prompts, outputs, plain)


def _answers(
    options: argparse.Namespace,
    prompts: list[Prompt],
    speculative: Mapping[str, Any] | None,
    temperature: float,
) -> list[RequestOutput]:
    llm = LLM(
        str(options.model),
        speculative_config=speculative,
        device=options.device,
        dtype=options.dtype,
        max_num_seqs=options.batch,
    )
    try:
        ids = [llm.encode(prompt.text, chat=llm.has_chat_template) for prompt in prompts]
        llm.generate(ids[:1], SamplingParams(temperature=temperature, max_tokens=16, seed=0))  # warms up
        params = SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=options.seed)
        return llm.generate(ids, params)
    finally:
        llm.close()


def _by_category(
    temperature: float,
    method: str,
    prompts: list[Prompt],
    outputs: list[RequestOutput],
    plain: list[RequestOutput],
) -> Iterator[Figures]:
    """A row a category, the mean over the four that goals are set for, and all prompts together."""
    names = list(dict.fromkeys(prompt.category for prompt in prompts))
    rows = []
    for name in [*names, ALL]:
        chosen = [i for i, prompt in enumerate(prompts) if name in (prompt.category, ALL)]
        ours, theirs = [outputs[i] for i in chosen], [plain[i] for i in chosen]
        rows.append(_figures(temperature, method, name, ours, theirs))
    yield from rows
    four = [row for row in rows if row.category in FOUR]
    if len(four) == len(FOUR):
        yield _mean_of(four)


def _figures(
    temperature: float, method: str, category: str, outputs: list[RequestOutput], plain: list[RequestOutput]
) -> Figures:
    stats = SpeculationStats.total([output.stats for output in outputs])
    ratios = stats.to_json(0)
    shares = [repeated_share(output.token_ids) for output in outputs]
    kept = [output.stats for output, share in zip(outputs, shares, strict=True) if share <= LOOPED]
    lengths = [len(output.token_ids) for output in outputs]
    loops = [share * length for share, length in zip(shares, lengths, strict=True)]
    pace = _pace(outputs)
    return Figures(
        temperature=temperature,
        method=method,
        category=category,
        acceptance_length=ratios["acceptance_length"],
        acceptance_rate=ratios["draft_acceptance_rate"],
        accepted_at=[count / max(1, stats.num_drafts) for count in stats.accepted_per_position],
        unlooped_length=SpeculationStats.total(kept).to_json(0)["acceptance_length"] if kept else None,
        unlooped=len(kept),
        tokens_per_second=pace,
        speed_up=pace / _pace(plain),
        looped=sum(loops) / sum(lengths),
        median_tokens=median(lengths),
        identical=mean(a.token_ids == b.token_ids for a, b in zip(outputs, plain, strict=True)),
    )


def _pace(outputs: Iterable[RequestOutput]) -> float:
    answers = list(outputs)
    seconds = sum(output.timing.decode_s for output in answers)
    return sum(len(output.token_ids) - 1 for output in answers) / max(seconds, 1e-9)


def _mean_of(rows: list[Figures]) -> Figures:
    first = rows[0]
    return Figures(
        temperature=first.temperature,
        method=first.method,
        category=MEAN_OF_FOUR,
        acceptance_length=_mean([r.acceptance_length for r in rows]),
        acceptance_rate=_mean([r.acceptance_rate for r in rows]),
        accepted_at=[mean(shares) for shares in zip(*(r.accepted_at for r in rows), strict=True)],
        unlooped_length=_mean([r.unlooped_length for r in rows]),
        unlooped=sum(r.unlooped for r in rows),
        tokens_per_second=mean(r.tokens_per_second for r in rows),
        speed_up=mean(r.speed_up for r in rows),
        looped=mean(r.looped for r in rows),
        median_tokens=mean(r.median_tokens for r in rows),
        identical=mean(r.identical for r in rows),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def _table(rows: list[Figures]) -> Iterator[str]:
    """Markdown; figures of answers that loop or break off are marked."""
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|" + "---|" * len(HEADINGS)
    for row in rows:
        length, rate, clean = row.acceptance_length, row.acceptance_rate, row.unlooped_length
        doubtful = row.looped > LOOPED or row.median_tokens < SHORT
        cells = [
            f"{row.temperature:g}",
            row.method,
            row.category + (" (!)" if doubtful else ""),
            "–" if length is None else f"{length:.2f}",
            "–" if rate is None else f"{rate:.0%}",
            f"– ({row.unlooped})" if clean is None else f"{clean:.2f} ({row.unlooped})",
            f"{row.tokens_per_second:.1f}",
            f"{row.speed_up:.2f}×",
            f"{row.looped:.0%}",
            f"{row.median_tokens:.0f}",
            f"{row.identical:.0%}",
        ]
        yield "| " + " | ".join(cells) + " |"


def _chosen(prompts: list[Prompt], per_category: int | None) -> list[Prompt]:
    if per_category is None:
        return prompts
    seen: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        if seen[prompt.category] <= per_category:
            kept.append(prompt)
    return kept


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("model", type=Path, help="folder of the target")
    made.add_argument("--drafter", type=Path, help="folder of a DFlash drafter; without it n-gram alone")
    made.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines with id, category and prompt")
    made.add_argument("--out", type=Path, help="JSON file for all figures, and what they were taken on")
    made.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    made.add_argument("--max-tokens", type=int, default=300, metavar="N", help="longest answer (default 300)")
    made.add_argument("--per-category", type=int, metavar="N", help="only the first N prompts of each")
    made.add_argument("--batch", type=int, default=1, metavar="B", help="answers at once (default 1)")
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    made.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    made.add_argument("--seed", type=int, default=0)
    return made


if __name__ == "__main__":
    sys.exit(main())

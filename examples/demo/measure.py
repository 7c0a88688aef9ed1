"""What each way of drafting gains on the demo: bench prompts, one at a time, engines taking turns.

    python examples/demo/measure.py --out speed.json
    python examples/demo/measure.py --temperatures 0.7 1.0 --methods sampling --out sampling.json
    python examples/demo/measure.py --methods context --out context.json
    python examples/demo/measure.py --temperatures 0 0.8 --methods copies --out copies.json
    python examples/demo/measure.py --drafters full=FOLDER mixed=FOLDER --out layouts.json

`speed`: plain decoding, n-gram, MTP and DFlash with several draft lengths. `sampling`: DFlash whose drafts
are the likeliest ids (greedy) or drawn with the noise of the target's own draw (coupled). `context`: both
drafters at the end of a conversation of 3,500 tokens, other questions and answers, and without one; rows
with `repeated_at_most` leave out prompts of which an answer holds more of itself twice. `copies`: drafters
that do and do not follow the text's own past.
`--drafters`: plain decoding and any DFlash drafters, for tables of layouts. Speed is decoding time alone,
prompts left out; medians over prompts would hide the long ones, so tokens are divided by seconds. `load_s` is
the time until an engine with that drafter is ready, its target included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from paceline.bench.demo import tokens_per_s
from paceline.bench.machine import environment
from paceline.bench.workload import Prompt, read_prompts
from paceline.engine.results import RequestOutput, SpeculationStats
from paceline.errors import explained
from paceline.train.data.filters import repeated_tokens

PROMPTS = Path(__file__).parents[2] / "src/paceline/bench/prompts.jsonl"
FOUR = ("coding", "math", "reasoning", "extraction")
DFLASH, MTP = {"method": "dflash", "model": "demo"}, {"method": "mtp"}
SLIDING = {"method": "dflash", "model": "demo-sliding"}
METHODS: dict[str, dict[str, dict[str, Any] | None]] = {
    "speed": {
        "plain": None,
        "ngram": {"method": "ngram"},
        **{f"mtp, n = {n}": MTP | {"num_speculative_tokens": n} for n in (2, 3)},
        **{f"dflash, n = {n}": DFLASH | {"num_speculative_tokens": n} for n in (2, 3, 4, 5, 7)},
        "dflash, n = 7, no look-up": DFLASH | {"num_speculative_tokens": 7, "prompt_lookup": False},
        "dflash sliding, n = 4": SLIDING | {"num_speculative_tokens": 4},
    },
    "sampling": {
        "plain": None,
        "greedy": DFLASH | {"draft_sample_method": "greedy"},
        "coupled": DFLASH | {"draft_sample_method": "coupled"},
    },
    "context": {"full": DFLASH, "sliding": SLIDING},
    "copies": {
        f"{name}{label}": config | {"num_speculative_tokens": n, "prompt_lookup": looks}
        for name, config, n in (
            ("dflash, n = 7", DFLASH, 7),
            ("dflash, n = 4", DFLASH, 4),
            ("dflash sliding, n = 7", SLIDING, 7),
            ("mtp, n = 3", MTP, 3),
        )
        for label, looks in ((" alone", False), ("", True))
    },
}
CONTEXT = 3500
LIMITS = (0.3, 0.15)
"""Shares of an answer inside 12-grams that it holds twice: a model that loops is easy to predict."""


@explained
def main() -> None:
    """Print a table and write the figures."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--methods", choices=METHODS, default="speed")
    p.add_argument("--model", default="demo", help="the target")
    p.add_argument("--drafters", nargs="+", metavar="NAME=FOLDER", help="these instead of --methods")
    p.add_argument("--temperatures", type=float, nargs="+", default=[0.0])
    p.add_argument("--per-category", type=int, default=12)
    p.add_argument("--max-tokens", type=int, default=192)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    if a.per_category < 1 or not a.out.resolve().parent.is_dir():
        p.error("--per-category: at least 1; --out: a file in a folder that exists")
    prompts = _chosen(a.per_category)
    rows, loads = [], {}
    methods = METHODS[a.methods] if a.drafters is None else _drafters(p, a.drafters)
    with ExitStack() as stack:
        engines = {}
        for name, config in methods.items():
            begin = time.perf_counter()
            llm = LLM(a.model, speculative_config=config, max_num_seqs=1)
            engines[name] = stack.enter_context(closing(llm))
            loads[name] = round(time.perf_counter() - begin, 2)
        for heat in a.temperatures:
            params = SamplingParams(temperature=heat, max_tokens=a.max_tokens, seed=0)
            fillers = (0, CONTEXT) if methods is METHODS["context"] else (0,)
            found = {filler: _answers(engines, prompts, params, filler) for filler in fillers}
            for limit in (None, *LIMITS) if len(found) > 1 else (None,):
                kept = _within(list(found.values()), limit)
                only = {} if limit is None else {"repeated_at_most": limit, "prompts": len(kept)}
                for filler, outputs in found.items():
                    taken = {name: [mine[i] for i in kept] for name, mine in outputs.items()}
                    settings = {"temperature": heat, "context": filler or "own", **only}
                    rows += _rows(taken, [prompts[i] for i in kept], settings)
    for row in rows:
        print(json.dumps(row))
    settings = {"max_tokens": a.max_tokens, "per_category": a.per_category, "batch": 1, "seed": 0}
    report = {"settings": settings, "env": environment(), "load_s": loads, "figures": rows}
    a.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _drafters(parser: argparse.ArgumentParser, named: list[str]) -> dict[str, dict[str, Any] | None]:
    """Plain decoding first, then a drafter each."""
    methods: dict[str, dict[str, Any] | None] = {"plain": None}
    for item in named:
        name, equals, folder = item.partition("=")
        if not (name and equals and folder) or name in methods:
            parser.error(f"--drafters {item}: write NAME=FOLDER, each name once and none of them `plain`")
        if not Path(folder, "config.json").is_file():
            parser.error(f"--drafters {item}: {folder} is no folder of a drafter")
        methods[name] = {"method": "dflash", "model": folder}
    return methods


def _chosen(count: int) -> list[Prompt]:
    kept: dict[str, int] = {}
    prompts = []
    for prompt in read_prompts(PROMPTS):
        kept[prompt.category] = kept.get(prompt.category, 0) + 1
        if kept[prompt.category] <= count:
            prompts.append(prompt)
    return prompts


def _answers(
    engines: dict[str, LLM], prompts: list[Prompt], params: SamplingParams, filler: int
) -> dict[str, list[RequestOutput]]:
    """Outputs by engine, in the order of the prompts."""
    found: dict[str, list[RequestOutput]] = {name: [] for name in engines}
    first = next(iter(engines.values()))
    turns = _turns(first, prompts) if filler else []
    for number, prompt in enumerate([prompts[0], *prompts]):
        ids = _behind(first, turns[number:] + turns[:number], prompt, filler)
        for name, engine in engines.items():
            (output,) = engine.generate([ids], params)
            if number:  # the first one warms up
                found[name].append(output)
        print(f"{number} of {len(prompts)}", end="\r", file=sys.stderr, flush=True)
    return found


def _within(found: list[dict[str, list[RequestOutput]]], limit: float | None) -> list[int]:
    """The prompts of which no answer repeats more than `limit` of itself; None: all."""
    count = len(next(iter(found[0].values())))
    if limit is None:
        return list(range(count))
    answers = [mine for outputs in found for mine in outputs.values()]
    return [i for i in range(count) if max(_repeated([mine[i]]) for mine in answers) <= limit]


def _repeated(outputs: list[RequestOutput]) -> float:
    """Share of the tokens inside a 12-gram that its answer holds at least twice."""
    tokens = sum(len(output.token_ids) for output in outputs)
    return sum(repeated_tokens(output.token_ids) for output in outputs) / max(1, tokens)


def _turns(llm: LLM, prompts: list[Prompt]) -> list[tuple[str, str]]:
    """Every question and its plain answer: what a conversation may have held before."""
    params = SamplingParams(temperature=0.0, max_tokens=192)
    asked = [llm.encode(prompt.text, chat=True) for prompt in prompts]
    answers = [llm.generate([ids], params)[0].text for ids in asked]
    return [(prompt.text, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _behind(llm: LLM, turns: list[tuple[str, str]], prompt: Prompt, tokens: int) -> list[int]:
    """The question as the chat template has it behind as many whole turns as fit into `tokens`; its own
    answer is none of them."""
    assert llm.tokenizer is not None
    messages = [{"role": "user", "content": prompt.text}]
    ids = llm.encode(prompt.text, chat=True)
    for question, answer in turns:
        earlier = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
        text = llm.tokenizer.render_chat([*earlier, *messages])
        longer = llm.tokenizer.encode_bare(text)
        if question != prompt.text and len(longer) <= tokens:
            messages, ids = [*earlier, *messages], longer
    return ids


def _rows(
    outputs: dict[str, list[RequestOutput]], prompts: list[Prompt], settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A row a method and category; `four`: the mean over the categories that goals are set for."""
    first = next(iter(outputs))
    categories = list(dict.fromkeys(p.category for p in prompts))
    for name, mine in outputs.items():
        by: dict[str, dict[str, float | None]] = {}
        for category in categories:
            chosen = [i for i, prompt in enumerate(prompts) if prompt.category == category]
            ours, base = [mine[i] for i in chosen], [outputs[first][i] for i in chosen]
            speed, plain = tokens_per_s(ours), tokens_per_s(base)
            assert speed and plain, "answers of one token each"
            ratios = SpeculationStats.total([output.stats for output in ours]).to_json(0)
            by[category] = {
                "acceptance_length": _rounded(ratios["acceptance_length"]),
                "acceptance_rate": _rounded(ratios["draft_acceptance_rate"]),
                "tokens_per_s": round(speed, 1),
                f"over_{first}": round(speed / plain, 3),
                "repeated": round(_repeated(ours), 3),
                "identical": sum(a.token_ids == b.token_ids for a, b in zip(ours, base, strict=True)),
            }
        four = [by[c] for c in FOUR if c in by]
        means = {
            key: round(sum(float(row[key] or 0.0) for row in four) / len(four), 3)
            for key in ("acceptance_length", "acceptance_rate", "tokens_per_s", f"over_{first}")
            if all(row[key] is not None for row in four)
        }
        whole = {"four": means, "repeated": round(_repeated(mine), 3), "categories": by}
        yield {"method": name, **settings, **whole}


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


if __name__ == "__main__":
    sys.exit(main())

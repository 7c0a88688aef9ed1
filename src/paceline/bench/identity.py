"""Same text with and without speculation: prompts greedy and drawn, alone and in a batch, each proposer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.bench.native import Native
from paceline.bench.rows import Row, rounded
from paceline.bench.workload import Prompt
from paceline.errors import PacelineError

TOKENS = 64
BATCH = 16
TEMPERATURE = 0.8
SEEDS = (0, 1, 2)
SAMPLINGS: tuple[tuple[float, int | None], ...] = ((0.0, None), *((TEMPERATURE, seed) for seed in SEEDS))
WHOLE = 72
"""Prompts of the row that counts."""
_SHOWN = 20

Texts = dict[tuple[str, float, int | None], list[int]]
"""Token ids by prompt id, temperature and seed."""


@dataclass(slots=True)
class Tally:
    """What one engine in one batch size gave, against plain decoding at batch 1."""

    method: str
    batch: int
    compared: int = 0
    tokens: int = 0
    divergences: list[dict[str, Any]] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0

    @property
    def proven(self) -> bool:
        """Whether drafts were both accepted and rejected; without that, identity shows nothing."""
        return self.method == "plain" or (self.accepted > 0 and self.rejected > 0)

    def to_json(self) -> dict[str, Any]:
        """Counts, for the row's detail."""
        return {
            "compared": self.compared,
            "tokens": self.tokens,
            "divergences": len(self.divergences),
            "accepted_drafts": self.accepted,
            "rejected_drafts": self.rejected,
        }


def run_texts(engine: Native, prompts: dict[str, list[int]], batch: int, tally: Tally | None = None) -> Texts:
    """All answers of an engine; `batch` 1 runs prompt by prompt, otherwise all at once with `batch` slots."""
    texts: Texts = {}
    groups = [[name] for name in prompts] if batch == 1 else [list(prompts)]
    for temperature, seed in SAMPLINGS:
        for names in groups:
            outputs = engine.generate([prompts[name] for name in names], TOKENS, temperature, seed, ids=names)
            for output in outputs:
                texts[output.id, temperature, seed] = list(output.token_ids)
                if tally:
                    accepted = output.speculation["num_accepted_tokens"]
                    tally.accepted += accepted
                    tally.rejected += output.speculation["num_draft_tokens"] - accepted
    return texts


def compare(tally: Tally, texts: Texts, expected: Texts) -> None:
    """Count the answers that equal the expected ones, and note where others part from them."""
    for key, wanted in expected.items():
        found = texts[key]
        tally.compared += 1
        tally.tokens += len(wanted)
        if found != wanted:
            pairs = enumerate(zip(found, wanted, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(found), len(wanted)))
            prompt, temperature, seed = key
            where = {"prompt": prompt, "temperature": temperature, "seed": seed, "position": at}
            tally.divergences.append({"method": tally.method, "batch": tally.batch, **where})


def measure(
    name: str, title: str, model: str, prompts: list[Prompt], methods: dict[str, dict[str, Any]]
) -> Row:
    """The row: the share of answers that equal plain decoding's at batch 1."""
    plain = Native(model, max_seqs=BATCH)
    encoded = {prompt.id: plain.encode(prompt.text) for prompt in prompts}
    expected = run_texts(plain, encoded, 1)
    crowd = Tally("plain", BATCH)
    compare(crowd, run_texts(plain, encoded, BATCH), expected)
    tallies, failures = [crowd], {}
    for method, speculative in methods.items():
        try:
            engine = Native(model, speculative, max_seqs=BATCH)
        except PacelineError as error:
            failures[method] = str(error)
            continue
        for batch in (1, BATCH):
            tally = Tally(method, batch)
            compare(tally, run_texts(engine, encoded, batch, tally), expected)
            tallies.append(tally)
    return _row(name, title, tallies, failures, len(prompts))


def _row(name: str, title: str, tallies: list[Tally], failures: dict[str, str], prompts: int) -> Row:
    compared = sum(tally.compared for tally in tallies)
    divergences = [entry for tally in tallies for entry in tally.divergences]
    unproven = [f"{t.method} at batch {t.batch}" for t in tallies if not t.proven]
    reason = None
    if failures:
        reason = "; ".join(f"{method}: {why}" for method, why in failures.items())
    elif unproven:
        reason = f"no draft accepted, or none rejected: {', '.join(unproven)}"
    elif prompts < WHOLE:
        reason = f"judged on all {WHOLE} prompts, of which {prompts} were run"
    detail = {
        "prompts": prompts,
        "answer_tokens": TOKENS,
        "temperatures": [0.0, TEMPERATURE],
        "seeds": list(SEEDS),
        "reference": "plain decoding, batch 1",
        "compared": compared,
        "identical": compared - len(divergences),
        "runs": {f"{t.method}, batch {t.batch}": t.to_json() for t in tallies},
        "divergences": divergences[:_SHOWN],
    }
    value = rounded(1 - len(divergences) / compared, 6)
    met = False if divergences else (None if reason else True)
    return Row(name, title, value, 1.0, "==", met, reps=1, reason=reason, detail=detail)

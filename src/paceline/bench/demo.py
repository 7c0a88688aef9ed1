"""What `paceline demo` measures: the same questions plain and with each proposer, one at a time, at batch 1.

Engines take turns prompt by prompt, so that a slower minute of the machine falls on all of them alike. Each
is warmed up first (kernels are compiled and caches touched then), and the warm-up is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.bench.prompts import CategoryPrompt

if TYPE_CHECKING:
    from paceline import LLM, SamplingParams
    from paceline.engine.results import RequestOutput

PLAIN = "plain"
WARM_UP_TOKENS = 16

PROPOSERS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "ngram": {"method": "ngram"},
    "mtp": {"method": "mtp"},
    "dflash": {"method": "dflash", "model": "demo", "num_speculative_tokens": 4},
}
"""Name of each run and its speculative configuration; the others are held against the first."""

OnStart = Callable[[str, str], None]
OnText = Callable[[str], None]
OnEnd = Callable[["RequestOutput", "RequestOutput"], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: one way to decode, over all prompts."""

    name: str
    tokens_per_s: float | None
    """Tokens after the first over decoding time; null where no prompt gave a second token."""
    speedup: float | None
    acceptance_length: float | None
    draft_acceptance_rate: float | None
    text_identical: bool
    """Whether every prompt's token ids are the plain run's."""


@dataclass(slots=True)
class DemoRun:
    """Completions by run name, in the order of the prompts."""

    prompts: Sequence[CategoryPrompt]
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)

    def rows(self, prompt: int | None = None) -> list[Row]:
        """The table over all prompts, or over one of them."""
        chosen = slice(None) if prompt is None else slice(prompt, prompt + 1)
        plain = self.outputs[PLAIN][chosen]
        return [_row(name, outputs[chosen], plain) for name, outputs in self.outputs.items()]


def warm_up(engines: Iterable[LLM], params: SamplingParams, token_ids: list[int]) -> None:
    """Let every engine compile and touch what it needs; nothing of it is counted."""
    brief = params.replace(max_tokens=min(WARM_UP_TOKENS, params.max_tokens or WARM_UP_TOKENS))
    for engine in engines:
        engine.generate(token_ids, brief)


def measure(
    engines: dict[str, LLM],
    prompts: Sequence[CategoryPrompt],
    params: SamplingParams,
    on_start: OnStart,
    on_text: OnText,
    on_end: OnEnd,
) -> DemoRun:
    """Run every prompt through every engine. `on_start(category, name)`, `on_text(delta)` and
    `on_end(output, the plain one)` follow along."""
    plain = engines[PLAIN]
    token_ids = [plain.encode(prompt.text, params, chat=plain.has_chat_template) for prompt in prompts]
    warm_up(engines.values(), params, token_ids[0])
    run = DemoRun(prompts, {name: [] for name in engines})
    for prompt, ids in zip(prompts, token_ids, strict=True):
        for name, engine in engines.items():
            on_start(prompt.category, name)
            run.outputs[name].append(_stream(engine, ids, params, prompt.category, on_text))
            on_end(run.outputs[name][-1], run.outputs[PLAIN][-1])
    return run


def _stream(
    engine: LLM, ids: list[int], params: SamplingParams, category: str, on_text: OnText
) -> RequestOutput:
    output = None
    for event in engine.stream(ids, params, ids=[category]):
        if event.error is not None:
            raise event.error
        on_text(event.text)
        output = event.output or output
    assert output is not None, "a stream ends with the finished request"
    return output


def _row(name: str, outputs: Sequence[RequestOutput], plain: Sequence[RequestOutput]) -> Row:
    speed, base = tokens_per_s(outputs), tokens_per_s(plain)
    drafts = sum(output.stats.num_drafts for output in outputs)
    drafted = sum(output.stats.num_draft_tokens for output in outputs)
    accepted = sum(output.stats.num_accepted_tokens for output in outputs)
    return Row(
        name=name,
        tokens_per_s=speed,
        speedup=speed / base if speed and base else None,
        acceptance_length=1 + accepted / drafts if drafts else None,
        draft_acceptance_rate=accepted / drafted if drafted else None,
        text_identical=all(a.token_ids == b.token_ids for a, b in zip(outputs, plain, strict=True)),
    )


def tokens_per_s(outputs: Sequence[RequestOutput]) -> float | None:
    """Tokens after the first over decoding time; None without a second token."""
    seconds = sum(output.timing.decode_s for output in outputs)
    tokens = sum(output.usage.completion_tokens - 1 for output in outputs)
    return tokens / seconds if tokens > 0 and seconds > 0 else None

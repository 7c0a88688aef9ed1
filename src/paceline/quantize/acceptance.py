"""Acceptance length and rate of a model's drafts, by category of prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.config import EngineConfig, ModelConfig, SpeculativeConfig
from paceline.config.model import Device
from paceline.engine.resolve import resolve
from paceline.engine.results import SpeculationStats

if TYPE_CHECKING:
    from paceline import LLM

EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt and its category."""

    id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    """Greedy answers to all questions."""

    sequences: list[list[int]]
    """Prompt and answer of each question, as token ids."""
    stats: dict[str, SpeculationStats] = field(default_factory=dict)
    """By category and over everything; empty without speculation."""

    def figures(self) -> dict[str, dict[str, float | None]]:
        """`acceptance_length` and `draft_acceptance_rate` by category."""
        rows = {name: stats.to_json(0) for name, stats in sorted(self.stats.items())}
        keys = ("acceptance_length", "draft_acceptance_rate")
        return {name: {key: row[key] for key in keys} for name, row in rows.items()}


def check_drafts(model: str, speculative: Mapping[str, Any], device: Device) -> None:
    """Raises: what `LLM` would raise for this model and proposer; headers only, so before any long run."""
    speculative_config = SpeculativeConfig.parse(speculative)
    resolve(EngineConfig(model=ModelConfig(model=model, device=device), speculative=speculative_config))


def answer(
    model: str,
    questions: Sequence[Question],
    speculative: Mapping[str, Any] | None,
    max_tokens: int,
    device: Device,
) -> Answers:
    """Let `model` answer all questions greedily, as one batch, and count what became of its drafts.

    Raises: the errors of `LLM`, and RequestError for a prompt that cannot be served.
    """
    from paceline import LLM, SamplingParams

    llm = LLM(model, speculative_config=speculative, device=device)
    try:
        prompts = [_encode(llm, question.text) for question in questions]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        outputs = llm.generate(prompts, params, ids=[question.id for question in questions])
    finally:
        llm.close()
    found = Answers([[*output.prompt_token_ids, *output.token_ids] for output in outputs])
    for question, output in zip(questions, outputs, strict=True):
        if speculative is not None:
            _count(found.stats, question.category, output.stats)
    return found


def _encode(llm: LLM, text: str) -> list[int]:
    return llm.encode(text, chat=llm.has_chat_template)


def _count(stats: dict[str, SpeculationStats], category: str, one: SpeculationStats) -> None:
    for key in {category or "none", EVERYTHING}:
        total = stats.setdefault(key, SpeculationStats(one.method, one.num_speculative_tokens))
        total.merge(one)

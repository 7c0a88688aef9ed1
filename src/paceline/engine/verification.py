"""Proves that speculation leaves the text alone: same prompts and seeds, plain and speculative, id for id.

In deterministic mode nothing but identity passes. Outside it two kernels may round differently, so a first
divergence passes when the two tokens were practically tied: their scores, recomputed by one teacher-forced
fp32 pass, differ by at most 2^-6 of the largest |logit|, divided by max(T, 1). Behind a first divergence the
texts have different histories and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch

from paceline.config.sampling import SamplingParams
from paceline.kernels.sample import gumbel_noise, request_key

if TYPE_CHECKING:
    from paceline.engine.llm import LLM
    from paceline.engine.results import RequestOutput

TOLERANCE = 2.0**-6

IDENTICAL, DIVERGED, UNPROVEN = 0, 1, 3


class Opener(Protocol):
    """Loads the model under test; `overrides` are keyword arguments of `paceline.LLM`."""

    def __call__(self, speculative: dict[str, Any] | None, **overrides: Any) -> LLM:
        """A fresh engine, plain where `speculative` is None."""
        ...


TeacherForced = Callable[[list[int]], torch.Tensor]
"""`teacher_forced(token ids [T]) -> fp32 logits [T, V]`: row i holds the logits after token i."""

Outputs: TypeAlias = "Sequence[Sequence[RequestOutput]]"
"""[seeds][prompts] completions."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a speculative completion first left the plain one."""

    prompt: str
    seed: int
    position: int
    """Index in the completion's token_ids."""
    tokens: tuple[int | None, int | None]
    """Plain and speculative; null where one of them had already ended."""
    scores: tuple[float, float] | None
    """What each token's argmax was taken over; null where one of the tokens is."""
    within_tolerance: bool


@dataclass(slots=True)
class Verification:
    """The outcome; `to_json` is what `paceline verify --json` prints."""

    prompts: int
    seeds: int
    mode: Literal["deterministic", "tolerant"]
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    windows: dict[str, int] = field(default_factory=lambda: {"full": 0, "partial": 0, "none": 0})
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether every completion is the plain one, near ties outside deterministic mode aside."""
        return all(divergence.within_tolerance for divergence in self.divergences)

    @property
    def proven(self) -> bool:
        """Whether a draft was accepted and one rejected: without both, the comparison shows nothing."""
        return self.num_accepted_tokens > 0 and self.windows["partial"] + self.windows["none"] > 0

    @property
    def exit_code(self) -> int:
        """0 identical and proven, 1 a divergence, 3 nothing proven."""
        if not self.identical:
            return DIVERGED
        return IDENTICAL if self.proven else UNPROVEN

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def count(self, output: RequestOutput) -> None:
        """Add one speculative completion's figures."""
        stats = output.outputs[0].stats
        self.num_drafts += stats.num_drafts
        self.num_draft_tokens += stats.num_draft_tokens
        self.num_accepted_tokens += stats.num_accepted_tokens
        self.windows["full"] += stats.fully_accepted
        self.windows["partial"] += stats.partly_accepted
        self.windows["none"] += stats.not_accepted


@dataclass(frozen=True, slots=True)
class Plan:
    """How every prompt is run: once a seed, all prompts as one batch."""

    seeds: int
    temperature: float
    max_tokens: int

    def params(self, seed: int) -> SamplingParams:
        """Nothing but temperature: filters and penalties would only blur a score."""
        return SamplingParams(temperature=self.temperature, seed=seed, max_tokens=self.max_tokens)


def verify_model(
    open_engine: Opener, speculative: dict[str, Any], prompts: dict[str, str], plan: Plan
) -> Verification:
    """Run `prompts` (text by id) plain, then with `speculative`, and compare; one engine is open at a time.

    Raises `RequestError` for a prompt that cannot be served, before anything is compared.
    """
    with closing(open_engine(None)) as engine:
        chat = engine.has_chat_template
        token_ids = [engine.encode(text, plan.params(0), chat=chat) for text in prompts.values()]
        deterministic = engine.deterministic
        plain = _run(engine, list(prompts), token_ids, plan)
    with closing(open_engine(speculative)) as engine:
        drafted = _run(engine, list(prompts), token_ids, plan)
    with ExitStack() as stack:

        @cache
        def referee() -> LLM:  # loaded only where there is a divergence to judge
            return stack.enter_context(closing(open_engine(None, dtype="float32", deterministic=True)))

        return compare(
            plan, plain, drafted, deterministic=deterministic,
            teacher_forced=lambda ids: referee().teacher_forced_logits(ids),
        )  # fmt: skip


def _run(engine: LLM, ids: list[str], token_ids: list[list[int]], plan: Plan) -> Outputs:
    return [engine.generate(token_ids, plan.params(seed), ids=ids) for seed in range(plan.seeds)]


def compare(
    plan: Plan,
    plain: Outputs,
    speculative: Outputs,
    *,
    deterministic: bool,
    teacher_forced: TeacherForced,
) -> Verification:
    """Compare completions of the same prompts and seeds; `teacher_forced` is called for divergences alone."""
    mode: Literal["deterministic", "tolerant"] = "deterministic" if deterministic else "tolerant"
    result = Verification(len(plain[0]), plan.seeds, mode)
    for seed, (plain_outputs, speculative_outputs) in enumerate(zip(plain, speculative, strict=True)):
        for expected, found in zip(plain_outputs, speculative_outputs, strict=True):
            result.count(found)
            position = first_difference(expected.token_ids, found.token_ids)
            if position is not None:
                divergence = _examine(expected, found, position, seed, plan.temperature, teacher_forced)
                if deterministic:  # identity is the rule: a near tie excuses nothing
                    divergence = replace(divergence, within_tolerance=False)
                result.divergences.append(divergence)
    return result


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token in which two completions differ, an early end included; None if equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _examine(
    expected: RequestOutput,
    found: RequestOutput,
    position: int,
    seed: int,
    temperature: float,
    teacher_forced: TeacherForced,
) -> Divergence:
    """Score both tokens of a first divergence from their common history."""
    tokens = _token_at(expected, position), _token_at(found, position)
    if tokens[0] is None or tokens[1] is None:
        return Divergence(expected.id, seed, position, tokens, None, within_tolerance=False)
    history = [*expected.prompt_token_ids, *expected.token_ids[:position]]
    logits = teacher_forced(history)[-1].float()
    scores = score_row(logits, temperature, request_key(expected.seed, 0), len(history))
    pair = float(scores[tokens[0]]), float(scores[tokens[1]])
    allowed = TOLERANCE * float(logits.abs().max()) / max(temperature, 1.0)
    tied = abs(pair[0] - pair[1]) <= allowed
    return Divergence(expected.id, seed, position, tokens, pair, within_tolerance=tied)


def score_row(logits: torch.Tensor, temperature: float, key: int, position: int) -> torch.Tensor:
    """[V] logits to what the token at absolute `position` is the argmax of: logits / T + noise, or logits."""
    if SamplingParams(temperature=temperature).greedy:
        return logits
    where = logits.device
    noise = gumbel_noise(
        torch.tensor([key], dtype=torch.int64, device=where),
        torch.tensor([position], dtype=torch.int64, device=where),
        logits.shape[-1],
    )
    return logits / temperature + noise[0]


def _token_at(output: RequestOutput, position: int) -> int | None:
    return output.token_ids[position] if position < len(output.token_ids) else None

"""What a request gives back: text, ids, and figures that say what speculation did for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.errors import PacelineError


@dataclass(slots=True)
class SpeculationStats:
    """Counts of one choice's verifications. Only emitted drafts count as accepted."""

    method: str | None
    num_speculative_tokens: int
    num_drafts: int = 0
    """Verifications that held at least one draft."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    target_passes: int = 0
    """Passes of the target after the prompt."""
    fully_accepted: int = 0
    partly_accepted: int = 0
    not_accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.accepted_per_position:
            self.accepted_per_position = [0] * self.num_speculative_tokens

    def record(self, drafted: int, agreed: int, emitted: int) -> None:
        """Count one verification: of `drafted` drafts the first `agreed` agreed, and `emitted` tokens
        were kept.

        A sequence may end inside its window: drafts after its end are not counted as accepted, but the
        window is classed by what verification said of it.
        """
        self.target_passes += 1
        if not drafted:
            return
        accepted = min(agreed, emitted)
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        for position in range(accepted):
            self.accepted_per_position[position] += 1
        if agreed == drafted:
            self.fully_accepted += 1
        elif agreed:
            self.partly_accepted += 1
        else:
            self.not_accepted += 1

    def merge(self, other: SpeculationStats) -> None:
        """Add another choice's counts to these."""
        for name in (
            "num_drafts", "num_draft_tokens", "num_accepted_tokens", "target_passes",
            "fully_accepted", "partly_accepted", "not_accepted",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for position, count in enumerate(other.accepted_per_position):
            self.accepted_per_position[position] += count

    @classmethod
    def total(cls, parts: Sequence[SpeculationStats]) -> SpeculationStats:
        """The counts of several choices of one method together; at least one."""
        found = cls(parts[0].method, parts[0].num_speculative_tokens)
        for part in parts:
            found.merge(part)
        return found

    def to_json(self, completion_tokens: int) -> dict[str, Any]:
        """The `speculation` object; ratios are null where nothing was drafted."""
        drafts = self.num_drafts
        return {
            "method": self.method,
            "num_drafts": drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_length": 1 + self.num_accepted_tokens / drafts if drafts else None,
            "draft_acceptance_rate": self.num_accepted_tokens / self.num_draft_tokens if drafts else None,
            "accepted_per_position": list(self.accepted_per_position),
            "tokens_per_step": (completion_tokens - 1) / self.target_passes if self.target_passes else None,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall time of one choice: admission to first token, and first token to last."""

    prefill_s: float
    decode_s: float
    decode_tokens_per_s: float | None
    """Tokens after the first over `decode_s`; null for a single token."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-softmax of the raw logits at one emitted token."""

    token_id: int
    logprob: float
    top: dict[int, float]
    """The most likely ids and their log-probabilities, best first."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of a request."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    """"stop", "length" or "abort"."""
    stop_reason: str | int | None
    """The stop string or stop id that ended it, if one did."""
    usage: Usage
    stats: SpeculationStats
    timing: Timing
    logprobs: list[TokenLogprobs] | None

    @property
    def speculation(self) -> dict[str, Any]:
        """The figures of speculation as in the `--json` object."""
        return self.stats.to_json(len(self.token_ids))


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request. The attributes of the `--json` object are those of its first choice."""

    id: str
    prompt_token_ids: list[int]
    seed: int
    """Seed of the request: its own, or the one drawn for it."""
    outputs: list[CompletionOutput]

    def __getattr__(self, name: str) -> Any:
        if name in _FIRST_CHOICE:
            return getattr(self.outputs[0], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def to_json(self) -> dict[str, Any]:
        """The object that `paceline generate --json` prints; further choices stand under `choices`."""
        first = self.outputs[0]
        row = {"id": self.id, **_choice_json(first), "seed": self.seed}
        if len(self.outputs) > 1:
            row["choices"] = [{"index": c.index, **_choice_json(c)} for c in self.outputs]
        return row


_FIRST_CHOICE = (
    "text", "token_ids", "finish_reason", "stop_reason", "usage", "speculation", "timing", "logprobs",
    "stats",
)  # fmt: skip


def _choice_json(choice: CompletionOutput) -> dict[str, Any]:
    row: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "usage": asdict(choice.usage),
        "speculation": choice.speculation,
        "timing": asdict(choice.timing),
    }
    if choice.logprobs is not None:
        row["logprobs"] = [asdict(entry) for entry in choice.logprobs]
    return row


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """News of one choice while it is being written."""

    id: str
    index: int
    text: str
    """New text; what might be the beginning of a stop string is held back until it is settled."""
    token_ids: list[int]
    """New tokens."""
    finish_reason: str | None
    """None while it goes on; "error" where the sequence had to be given up."""
    output: RequestOutput | None
    """The whole request, with the last event of its last choice."""
    error: PacelineError | None = None
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each new token, if the request asked for them."""
    drafted: int = 0
    """Drafts of the verification that gave the tokens."""
    accepted: int = 0
    """How many of the tokens were drafts; one behind them is the bonus (plain where nothing was drafted)."""
    stop_reason: str | int | None = None
    """The stop string or stop id that ended the choice, if one did."""
    cached_tokens: int = 0
    """Prompt tokens that were not read again."""

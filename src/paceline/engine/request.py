"""A request as the engine takes it: ids, sampling parameters and the key of its noise."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.engine.sequence import Sequence
from paceline.errors import RequestError
from paceline.kernels.sample import request_key

if TYPE_CHECKING:
    from paceline.config.sampling import SamplingParams
    from paceline.engine.grammar import Structure


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and what to do with it. `seed` is always set: a request without one draws its own."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    max_drafts: int | None = None
    """Drafts of a verification at most, where the request wants fewer than the engine's."""
    structure: Structure | None = None
    """The form that the answer must have."""
    arrived: float = field(default_factory=time.perf_counter)

    def sequences(self) -> list[Sequence]:
        """One sequence a choice; choice i draws its noise from H(seed, i)."""
        return [
            Sequence(
                request_id=self.id,
                index=index,
                prompt_ids=self.prompt_ids,
                params=self.params,
                key=request_key(self.seed, index),
                max_drafts=self.max_drafts,
            )
            for index in range(self.params.n)
        ]


def draw_seed() -> int:
    """A random 64-bit seed for a request that brings none."""
    return secrets.randbits(64)


def check_prompt(prompt_ids: list[int], vocab_size: int, max_model_len: int) -> None:
    """Refuse prompts that cannot be run: empty, with ids outside the vocabulary, or too long."""
    if not prompt_ids:
        raise RequestError("the prompt is empty: give at least one token", param="prompt")
    worst = max(prompt_ids, key=lambda token: token if token >= 0 else vocab_size - token)
    if not 0 <= worst < vocab_size:
        raise RequestError(
            f"prompt token id {worst} is outside the vocabulary: ids are 0..{vocab_size - 1}", param="prompt"
        )
    if len(prompt_ids) >= max_model_len:
        raise RequestError(
            f"the prompt has {len(prompt_ids)} tokens and leaves no room for an answer: "
            f"max_model_len is {max_model_len}",
            param="prompt",
        )

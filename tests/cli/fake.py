"""A stand-in for `paceline.LLM`: answers from a script, so that commands are tested without a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paceline.config import SamplingParams
from paceline.engine.results import (
    CompletionOutput,
    RequestOutput,
    SpeculationStats,
    StreamEvent,
    Timing,
    Usage,
)
from paceline.errors import CapacityError, RequestError

LIMIT = 40
"""Longest prompt, in tokens, that the fake serves."""


@dataclass
class Script:
    """What the fakes do, and a record of what was asked of them."""

    opened: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    chat_template: bool = False
    defaults: SamplingParams = field(default_factory=SamplingParams)
    deterministic: bool = True
    raises: BaseException | None = None
    """Raised by the next generation."""
    failing: set[str] = field(default_factory=set)
    """Ids of requests that fail while the others run on."""
    accepted: int = 2
    """Drafts of three accepted in each window."""
    wrong_at: int | None = None
    """Index of a token that the speculative engine gets wrong."""


def stats(method: str | None, accepted: int) -> SpeculationStats:
    """Figures of four windows of three drafts each, or of plain decoding."""
    result = SpeculationStats(method, 3 if method else 0)
    for _ in range(4):
        result.record(3 if method else 0, accepted if method else 0, accepted + 1)
    return result


class FakeLLM:
    """Ids are the bytes of a text; the completion of a prompt is the prompt reversed, cut to max_tokens."""

    def __init__(self, script: Script, model: str, *, speculative_config: Any = None, **options: Any) -> None:
        script.opened.append({"model": model, "speculative_config": speculative_config, **options})
        self.script, self.speculative = script, speculative_config
        self.deterministic = options.get("deterministic", script.deterministic)
        self.has_chat_template = script.chat_template

    def determinism(self) -> dict[str, Any]:
        on = self.deterministic
        return {"on": on, "products": "fake" if on else None, "cost": 0.5 if on else None}

    def default_sampling_params(self) -> SamplingParams:
        return self.script.defaults

    def encode(self, prompt: str, params: SamplingParams, *, chat: bool = False) -> list[int]:
        ids = list((f"<{prompt}>" if chat else prompt).encode())
        if not 0 < len(ids) <= LIMIT:
            raise RequestError(f"the prompt has {len(ids)} tokens; 1 to {LIMIT} fit", param="prompt")
        return ids

    def generate(
        self, prompts: list[Any], sampling_params: SamplingParams, *, ids: list[str] | None = None
    ) -> list[RequestOutput]:
        prompts = [prompts] if isinstance(prompts[0], int) else prompts
        names = ids or [str(index) for index in range(len(prompts))]
        self.script.requests.append({"ids": names, "params": sampling_params})
        if self.script.raises is not None:
            raise self.script.raises
        return [self._answer(n, p, sampling_params) for n, p in zip(names, prompts, strict=True)]

    def stream(self, prompts: list[Any], params: SamplingParams, *, ids: list[str] | None = None):
        for output in self.generate(prompts, params, ids=ids):
            if output.id in self.script.failing:
                yield StreamEvent(output.id, 0, "", [], None, None, CapacityError("it outgrew the memory"))
                continue
            half = len(output.text) // 2
            yield StreamEvent(output.id, 0, output.text[:half], [], None, None)
            yield StreamEvent(output.id, 0, output.text[half:], [], output.finish_reason, output)

    def teacher_forced_logits(self, token_ids: list[int]) -> torch.Tensor:
        return torch.zeros(len(token_ids), 256).index_fill_(1, torch.tensor([120]), 4.0)

    def close(self) -> None:
        self.script.closed += 1

    def _answer(self, name: str, prompt: list[int], params: SamplingParams) -> RequestOutput:
        token_ids = prompt[::-1][: params.max_tokens]
        if self.speculative and self.script.wrong_at is not None and self.script.wrong_at < len(token_ids):
            token_ids[self.script.wrong_at] ^= 1
        method = self.speculative["method"] if self.speculative else None
        choice = CompletionOutput(
            index=0,
            text=bytes(token_ids).decode(errors="replace"),
            token_ids=token_ids,
            finish_reason="length",
            stop_reason=None,
            usage=Usage(len(prompt), len(token_ids)),
            stats=stats(method, self.script.accepted),
            timing=Timing(0.1, 0.5 if method else 1.0, 10.0),
            logprobs=None,
        )
        choices = [replace(choice, index=i) for i in range(params.n)]
        return RequestOutput(name, prompt, params.seed or 7, choices)

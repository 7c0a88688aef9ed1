"""Our own engine as a benchmark sees it: through `paceline.LLM`, like everybody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import LLM, SamplingParams
from paceline.bench.peers.base import TokenPrompts

if TYPE_CHECKING:
    from paceline.engine.results import RequestOutput


class Native:
    """One loaded engine. `speculative` as in `--speculative-config`; None: plain decoding."""

    name = "paceline"

    def __init__(self, model: str | Path, speculative: dict[str, Any] | None = None, max_seqs: int = 16):
        self.llm = LLM(str(model), speculative_config=speculative, device="cpu", max_num_seqs=max_seqs)

    def generate(
        self,
        prompts: TokenPrompts,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        ids: list[str] | None = None,
    ) -> list[RequestOutput]:
        """Answers of exactly `max_tokens` tokens to all prompts, as one batch."""
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True)
        return self.llm.generate([list(prompt) for prompt in prompts], params, ids=ids)

    def seconds(self, prompts: TokenPrompts, max_tokens: int) -> float:
        """See `peers.base.Engine`."""
        start = time.perf_counter()
        outputs = self.generate(prompts, max_tokens)
        seconds = time.perf_counter() - start
        assert all(len(output.token_ids) == max_tokens for output in outputs), "a sequence ended early"
        return seconds

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, through the chat template where the model has one."""
        tokenizer = self.llm.tokenizer
        assert tokenizer is not None, "the benchmark's models have a tokenizer"
        return self.llm.encode(text, chat=tokenizer.has_chat_template)

    def environment(self) -> dict[str, Any]:
        """The resolved plan."""
        return self.llm.plan()

"""Serving acceptance on held-out prompts: the engine itself drafts and verifies, as it will for users.

Training knows how often a guess is right after a true beginning; what counts is how many tokens a
verification gives when the model goes on by itself. So an exported folder is loaded as `--speculative-config`
would load it, and the figures are the engine's own.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.config.model import Device
from paceline.config.sampling import SamplingParams
from paceline.engine.results import SpeculationStats
from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import ConfigError
from paceline.train.data.prompts import PromptEncoder, read_prompts

if TYPE_CHECKING:
    from paceline.train.settings.drafter import AcceptanceSettings

EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class HeldOutPrompt:
    """A prompt that nothing was trained on, as token ids of the target."""

    category: str
    """Empty where its line names none."""
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of the drafts, by category and over everything."""

    stats: Mapping[str, SpeculationStats]
    lengths: Sequence[int]
    """Tokens of each answer."""

    def length(self, category: str = EVERYTHING) -> float:
        """Acceptance length: tokens of a verification that held drafts, the bonus included."""
        stats = self.stats[category]
        return 1 + stats.num_accepted_tokens / max(1, stats.num_drafts)

    def by_position(self, category: str = EVERYTHING) -> list[float]:
        """Share of verifications that accepted draft 1, 2, ..."""
        stats = self.stats[category]
        return [count / max(1, stats.num_drafts) for count in stats.accepted_per_position]

    def figures(self) -> dict[str, float]:
        """Flat numbers for a log: ``score`` is the acceptance length."""
        named = {
            f"acceptance_length/{name}": self.length(name)
            for name in sorted(self.stats)
            if name != EVERYTHING
        }
        places = {f"accepted_at/{k}": share for k, share in enumerate(self.by_position(), start=1)}
        return {"score": self.length(), "acceptance_length": self.length(), **named, **places}


def held_out_prompts(target: Path, settings: AcceptanceSettings) -> list[HeldOutPrompt]:
    """The prompts that `settings` names, in the chat format of the target in folder `target`.

    Of more prompts than `limit`, a selection spread evenly over the file. Raises: ConfigError for a file that
    cannot be read or holds no prompt.
    """
    encoder = PromptEncoder(load_tokenizer(target), None, "on" if settings.thinking else "off")
    prompts = list(read_prompts([settings.prompts], "evaluate.prompts"))
    if not prompts:
        raise ConfigError(f"{settings.prompts} holds no prompt", key="evaluate.prompts")
    count = min(settings.limit, len(prompts))
    chosen = [prompts[i * len(prompts) // count] for i in range(count)]
    return [HeldOutPrompt(p.category or "", encoder.encode(p, settings.thinking)) for p in chosen]


def serving_acceptance(
    model: Path,
    speculative: Mapping[str, Any],
    prompts: Sequence[HeldOutPrompt],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    device: Device = "auto",
    max_num_seqs: int = 8,
    seed: int = 0,
) -> Acceptance:
    """Let the engine answer `prompts` with the drafts of `speculative` (as in `--speculative-config`).

    Loads the model anew beside whatever is in memory and drops it again. Raises: the errors of `LLM`.
    """
    from paceline import LLM

    longest = max(len(prompt.ids) for prompt in prompts) + max_tokens
    llm = LLM(
        str(model),
        speculative_config=speculative,
        device=device,
        max_num_seqs=max_num_seqs,
        max_model_len=_within(model, longest),
        host_swap_gib=0.0,
    )
    try:
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
        outputs = llm.generate([prompt.ids for prompt in prompts], params)
    finally:
        llm.close()
        _free()
    stats: dict[str, SpeculationStats] = {}
    for prompt, output in zip(prompts, outputs, strict=True):
        for name in {prompt.category, EVERYTHING} - {""}:
            one = output.stats
            stats.setdefault(name, SpeculationStats(one.method, one.num_speculative_tokens)).merge(one)
    return Acceptance(stats, [len(output.token_ids) for output in outputs])


def _within(model: Path, longest: int) -> int:
    from paceline.models.registry import read_target_spec

    return min(longest, read_target_spec(model).max_position)


def _free() -> None:
    """Give the engine's memory back to the device, which goes on training."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

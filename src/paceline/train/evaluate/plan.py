"""What `paceline train eval --plan` says: answers and tokens, memory of the engines, time from a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.engine import EngineConfig
from paceline.config.model import Device, ModelConfig
from paceline.config.sampling import SamplingParams
from paceline.config.speculative import SpeculativeConfig
from paceline.engine.assemble import assemble
from paceline.engine.budget import forecast
from paceline.engine.resolve import Resolved, resolve
from paceline.engine.tokenizer import load_tokenizer
from paceline.train.data.answers import Answers, Job
from paceline.train.data.prompts import Prompt
from paceline.train.data.trial import Trial, run_trial
from paceline.train.evaluate.answering import ChatForm
from paceline.train.settings.evaluate import EvaluateSettings

SKILLS = ("arithmetic", "tools", "extraction", "word_problems", "puzzles")
PLAIN = "answers"
"""The engine without a proposer."""


def plan_of(
    settings: EvaluateSettings, prompts: Sequence[Prompt], folder: Path, device: Device
) -> dict[str, Any]:
    """Resolved settings, how many answers of how many tokens there will be at most, and what they take.

    Loads the model for a trial of at most 20 seconds.
    """
    form = ChatForm(load_tokenizer(folder))
    encoded = [form.encode(p.messages, p.tools, settings.answers.thinking) for p in prompts]
    engines = resolved_engines(settings, folder, device, max(map(len, encoded)))
    memory = {name: forecast(engine) for name, engine in engines.items()}  # before the model is loaded
    counts = answer_counts(settings, len(prompts))
    params = SamplingParams(temperature=0.0, max_tokens=settings.answers.max_tokens, seed=settings.seed)
    todo = (Job(str(i), None, settings.answers.thinking, params, ids) for i, ids in enumerate(encoded))
    trial = run_trial(Answers(assemble(engines[PLAIN].config)), todo)
    return {
        "settings": settings.model_dump(mode="json"),
        "answers": sum(count for count, _ in counts.values()),
        "tokens_at_most": sum(count * limit for count, limit in counts.values()),
        "engine": {
            "model": memory[PLAIN]["model"],
            "memory": {name: found["memory"] for name, found in memory.items()},
            "largest": max(found["memory"]["total"] for found in memory.values()),
        },
        "estimate": estimate(trial, counts, settings.answers.max_tokens),
    }


def resolved_engines(
    settings: EvaluateSettings, folder: Path, device: Device, longest: int = 0
) -> dict[str, Resolved]:
    """The engines that the evaluation loads one after the other, from headers alone: one without drafts, and
    one a proposer, with room for a prompt of `longest` tokens (0: for whatever the model reads)
    and its answer.

    Raises: the errors with which the engine refuses a model or a proposer.
    """
    model = ModelConfig(model=str(folder), device=device)
    engines = {PLAIN: resolve(EngineConfig(model=model, max_num_seqs=settings.max_num_seqs))}
    if longest:
        room = min(longest + settings.acceptance.max_tokens, engines[PLAIN].spec.max_position)
        model = model.model_copy(update={"max_model_len": room})
    for name, config in settings.acceptance.proposers.items():
        speculative = SpeculativeConfig.parse(config)
        engines[f"acceptance.{name}"] = resolve(
            EngineConfig(model=model, speculative=speculative, max_num_seqs=settings.max_num_seqs)
        )
    return engines


def answer_counts(settings: EvaluateSettings, prompts: int) -> dict[str, tuple[int, int]]:
    """Of each section, how many answers there are and how long one may be."""
    serving = settings.acceptance
    each = prompts if serving.limit is None else min(serving.limit, prompts)
    served = each * len(serving.proposers) * len(serving.temperatures)
    skills = {name: getattr(settings, name) for name in SKILLS}
    return {
        "answers": (prompts, settings.answers.max_tokens),
        **{name: (skill.count, skill.max_tokens) for name, skill in skills.items()},
        "acceptance": (served, serving.max_tokens),
    }


def estimate(trial: Trial, counts: Mapping[str, tuple[int, int]], limit: int) -> dict[str, Any]:
    """What `counts` take at the pace of a trial whose answers ended at `limit`: drafted answers at the pace
    of plain ones, texts for perplexity not at all."""
    mean = trial.mean_tokens(limit)
    found = trial.estimate(limit, sum(count * min(mean, most) for count, most in counts.values()))
    known = found["seconds"] is not None
    basis = (
        " by a trial of bench prompts without drafts, texts aside" if known else ": the trial wrote nothing"
    )
    return {**found, "text": found["text"] + basis}

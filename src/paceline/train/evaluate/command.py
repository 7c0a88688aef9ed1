"""The body of `paceline train eval`: a target's answers, its skills, its proposers; one report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.config.speculative import SpeculativeConfig
from paceline.errors import ConfigError
from paceline.train.data.prompts import Prompt, read_prompts
from paceline.train.evaluate.bars import judge
from paceline.train.evaluate.environment import environment
from paceline.train.evaluate.report import read_card, show, training_runs, write_card, write_report
from paceline.train.loop.outputs import check_folder
from paceline.train.loop.plan import show as show_values
from paceline.train.settings.base import load_yaml, with_flags
from paceline.train.settings.evaluate import EvaluateSettings

if TYPE_CHECKING:
    from paceline import LLM
    from paceline.engine.results import SpeculationStats
    from paceline.train.evaluate.answering import Answerer

Device = Literal["auto", "cpu", "cuda"]


def run(
    config: Path,
    *,
    plan: bool = False,
    as_json: bool = False,
    device: Device = "auto",
    seed: int | None = None,
) -> int:
    """Measure what a settings file asks for; the report is on disk after every section.

    plan: say what would be measured, and what it takes by a trial of at most 20 seconds. seed: instead of the
    file's. Returns the exit code: 0, whether the bars are met or not.
    """
    settings = load_yaml(config, EvaluateSettings)
    if seed is not None:
        settings = with_flags(settings, seed=seed)
    prompts = bench_prompts(settings)
    if plan:
        from paceline.train.evaluate.plan import plan_of

        folder = Evaluation(settings, prompts, device).folder  # everything that it needs is there
        show_values(plan_of(settings, prompts, folder, device), as_json)
        return 0
    report = Evaluation(settings, prompts, device).run()
    if as_json:
        print(json.dumps(report, ensure_ascii=False), flush=True)
    else:
        show(report)
        _say(f"report written to {settings.out}")
    return 0


def bench_prompts(settings: EvaluateSettings) -> list[Prompt]:
    """The prompts of the section `answers`. Raises ConfigError for a file without any."""
    with as_file(files("paceline.bench") / "prompts.jsonl") as own:
        path = settings.answers.prompts or str(own)
        found = list(read_prompts([path], "answers.prompts"))
    if not found:
        raise ConfigError(f"{path} holds no prompt", key="answers.prompts")
    return found


class Evaluation:
    """One run: settings in, the report out.

    Raises at construction what would otherwise end it after hours: files and folders that are missing,
    proposers that do not fit the model.
    """

    def __init__(self, settings: EvaluateSettings, prompts: Sequence[Prompt], device: Device) -> None:
        from paceline.models.hub import resolve_model
        from paceline.train.evaluate.perplexity import read_text
        from paceline.train.evaluate.plan import resolved_engines

        self.settings, self.prompts, self.device = settings, prompts, device
        self.folder = resolve_model(settings.model)
        self.sections: dict[str, Any] = {}
        self._texts = {name: read_text(name, path) for name, path in settings.texts.items()}
        self._runs = training_runs(settings.runs)
        self._environment = environment(device)
        self._began = time.perf_counter()
        if settings.card is not None:
            read_card(Path(settings.card))
        if Path(settings.out).is_dir():
            raise ConfigError(f"out: {settings.out} is a folder; name a file in it", key="out")
        check_folder(Path(settings.out).parent)
        resolved_engines(settings, self.folder, device)

    def run(self) -> dict[str, Any]:
        """Measure everything; returns the report."""
        from paceline import LLM

        Path(self.settings.out).parent.mkdir(parents=True, exist_ok=True)

        llm = LLM(str(self.folder), device=self.device, max_num_seqs=self.settings.max_num_seqs,
                  host_swap_gib=0.0)  # fmt: skip
        try:
            self._answered(llm)
        finally:
            llm.close()
        self._served()
        report = self._save()
        if self.settings.card is not None:
            write_card(Path(self.settings.card), report)
        return report

    def _answered(self, llm: LLM) -> None:
        from paceline.train.evaluate import skills
        from paceline.train.evaluate.answering import Answerer
        from paceline.train.evaluate.perplexity import perplexity
        from paceline.train.evaluate.plan import SKILLS

        answerer, settings = Answerer(llm), self.settings
        self.sections["answers"] = skills.bench_answers(answerer, self.prompts, settings.answers)
        self._save("answers")
        for name in SKILLS:
            if getattr(settings, name).count:
                self.sections[name] = skills.skill(answerer, name, getattr(settings, name), settings.seed)
                self._save(name)
        for name, text in self._texts.items():
            found = perplexity(llm, text, settings.text_tokens)
            self.sections.setdefault("texts", {})[name] = found
            self._save(f"texts.{name}")
        self._encoded = self._served_prompts(answerer) if settings.acceptance.proposers else []

    def _served_prompts(self, answerer: Answerer) -> list[Any]:
        from paceline.train.evaluate.acceptance import HeldOutPrompt

        thinking = self.settings.answers.thinking
        return [
            HeldOutPrompt(p.category or "none", answerer.encode(p.messages, p.tools, thinking))
            for p in _spread(self.prompts, self.settings.acceptance.limit)
        ]

    def _served(self) -> None:
        from paceline.train.evaluate.acceptance import EVERYTHING, serving_acceptance

        settings = self.settings.acceptance
        for name, config in settings.proposers.items():
            for heat in settings.temperatures:
                found = serving_acceptance(
                    self.folder, SpeculativeConfig.parse(config).model_dump(exclude_none=True),
                    self._encoded, max_tokens=settings.max_tokens, temperature=heat, device=self.device,
                    max_num_seqs=self.settings.max_num_seqs, seed=self.settings.seed,
                )  # fmt: skip
                categories = {
                    key: {
                        "acceptance_length": found.length(key),
                        "tokens_per_pass": tokens_per_pass(stats),
                        "by_position": found.by_position(key),
                        "verifications": stats.num_drafts,
                        "target_passes": stats.target_passes,
                    }
                    for key, stats in sorted(found.stats.items())
                    if key != EVERYTHING
                }
                self.sections.setdefault("acceptance", {}).setdefault(name, {})[str(float(heat))] = {
                    "acceptance_length": found.length(),
                    "tokens_per_pass": tokens_per_pass(found.stats[EVERYTHING]),
                    "by_position": found.by_position(),
                    "tokens": sum(found.lengths),
                    "categories": categories,
                }
                self._save(f"acceptance of {name} at T = {heat:g}")

    def _save(self, done: str | None = None) -> dict[str, Any]:
        """Write the report as far as it goes."""
        report = {
            "model": self.settings.model,
            "seed": self.settings.seed,
            "seconds": round(time.perf_counter() - self._began, 1),
            "environment": self._environment,
            "settings": self.settings.model_dump(mode="json"),
            "bars": [verdict.to_json() for verdict in judge(self.sections)],
            "runs": self._runs,
            "sections": self.sections,
        }
        write_report(Path(self.settings.out), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        if done is not None:
            _say(f"{done}: done after {report['seconds']:.0f} s")
        return report


def tokens_per_pass(stats: SpeculationStats) -> float:
    """Tokens of a pass of the target, with drafts or without: n-gram often has none to offer."""
    return 1 + stats.num_accepted_tokens / max(1, stats.target_passes)


def _spread(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts, taken evenly."""
    count = len(prompts) if limit is None else min(limit, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]


def _say(line: str) -> None:
    print(f"paceline: {line}", file=sys.stderr, flush=True)

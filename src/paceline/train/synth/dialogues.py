"""Dialogues by a small instruction model: it writes the user's turns itself, then answers them.

    python -m paceline.train.synth.dialogues MODEL OUT --seconds 60 120 90

Given nothing but the head of a user's turn, a chat model writes the turn that it expects there (Xu et al.
2024, "Magpie", arXiv 2406.08464). texts/starters.yaml steers that towards code, sums, reasoning, extraction
and prose; or it is given the questions.
Three parts, each with a budget of seconds: `prompts`; `brief`, answers under a system prompt that asks for
brevity, of which those that end by themselves are kept; `own`, answers under the model's own template, cut
where they are long (what a drafter for that very model learns from). OUT receives prompts.jsonl, brief.npz
and own.npz: token ids end to end with offsets, which numpy reads.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.resources import files
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
import yaml
from tokenizers import Tokenizer

from paceline.config.lines import json_lines
from paceline.errors import ConfigError, explained
from paceline.train.data.rollout import Answer, Prompt, Rollout
from paceline.train.modules.load import load_train_target

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
BRIEF = (
    "You are a helpful assistant. Answer briefly and to the point, in one to four sentences or a short list."
)
PROMPT_TOKENS, ANSWER_TOKENS, LENGTH = 96, 224, 416


def starters(seed: int) -> Iterator[tuple[str, str]]:
    """Endless (category, first words of a user's turn)."""
    text = files("paceline.train.synth").joinpath("texts/starters.yaml").read_text(encoding="utf-8")
    kinds = yaml.safe_load(text)
    rng, names = random.Random(seed), list(kinds)
    weights = [kinds[name]["share"] for name in names]
    while True:
        name = rng.choices(names, weights)[0]
        yield name, rng.choice(kinds[name]["words"])


class Dialogues:
    """One model, its tokenizer, and the three parts."""

    def __init__(
        self, model: Path, out: Path, slots: int, seed: int, device: str, length: int = LENGTH
    ) -> None:
        """length: tokens of a question and its answer, template included."""
        self.length, self.out, self.seed, self.begin = length, out, seed, time.perf_counter()
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        compute = torch.bfloat16 if device == "cuda" else torch.float32
        target = load_train_target(model, device, compute)
        if device == "cuda":
            target.compile_decode()
        end = self.tokenizer.token_to_id("<|im_end|>")
        assert end is not None, f"{model} has no chat format with <|im_end|>"
        torch.manual_seed(seed)
        self.rollout = Rollout(target, slots, length, stop_ids=(end, 0), min_p=0.05)

    def say(self, text: str) -> None:
        """Progress to stdout."""
        print(f"[{time.perf_counter() - self.begin:6.1f}s] {text}", flush=True)

    def head(self, system: str, text: str = "") -> str:
        """The template up to the user's text."""
        return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}"

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids; the template's marks are tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompts(self, seconds: float, count: int) -> list[tuple[str, str]]:
        """(category, text) of user turns that ended by themselves, each once."""
        drawn: dict[int, tuple[str, str]] = {}

        def begun() -> Iterator[Prompt]:
            for key, (category, words) in zip(range(count), starters(self.seed), strict=False):
                drawn[key] = (category, words)
                yield Prompt(key, self.encode(self.head(SYSTEM, words)), 1.0, PROMPT_TOKENS)

        seen: dict[str, tuple[str, str]] = {}
        for answer in self.rollout.run(begun(), self.say, seconds):
            category, words = drawn.pop(answer.prompt.key)
            text = (words + self.tokenizer.decode(answer.ids[:-1], skip_special_tokens=False)).strip()
            if answer.stopped and len(text) >= 12 and "<|" not in text:
                seen.setdefault(" ".join(text.lower().split()), (category, text))
        return list(seen.values())

    def answers(
        self,
        prompts: list[tuple[str, str]],
        order: Iterable[int],
        system: str,
        heats: tuple[float, ...],
        seconds: float,
    ) -> list[Answer]:
        """Answers to the prompts, in turn at each of the temperatures; too long ones are left out.

        order: numbers of prompts, in which they are asked; an answer's key is its prompt's number.
        """
        after = "<|im_end|>\n<|im_start|>assistant\n"

        def asked() -> Iterator[Prompt]:
            for i, heat in zip(order, cycle(heats), strict=False):
                ids = self.encode(self.head(system, prompts[i][1]) + after)
                if len(ids) < self.length - 1:
                    yield Prompt(i, ids, heat, ANSWER_TOKENS)

        return list(self.rollout.run(asked(), self.say, seconds))

    def brief(self, prompts: list[tuple[str, str]], seconds: float) -> list[Answer]:
        """Short answers, from the first prompt on."""
        return self.answers(prompts, range(len(prompts)), BRIEF, (0.0, 0.0, 0.7), seconds)

    def own(self, prompts: list[tuple[str, str]], seconds: float) -> list[Answer]:
        """Answers under the model's own template, from the last prompt back: other ones than `brief` has."""
        return self.answers(prompts, reversed(range(len(prompts))), SYSTEM, (0.0, 0.7), seconds)

    def save(self, name: str, answers: Iterable[Answer], kept: bool) -> None:
        """One file of answers: the prompt's number, its temperature, and the ids."""
        rows = [a for a in answers if a.ids and (a.stopped or not kept)]
        np.savez(
            self.out / f"{name}.npz",
            number=np.array([a.prompt.key for a in rows], np.int32),
            heat=np.array([a.prompt.temperature for a in rows], np.float16),
            stopped=np.array([a.stopped for a in rows]),
            offsets=np.cumsum([0, *(len(a.ids) for a in rows)], dtype=np.int64),
            ids=np.array([i for a in rows for i in a.ids], np.uint16),
        )
        self.say(f"{name}: {len(rows)} answers, {sum(len(a.ids) for a in rows)} tokens")


def read_questions(path: Path) -> list[tuple[str, str]]:
    """(category, text) of every line. Raises: ConfigError that names what is wrong with the file."""
    found: list[tuple[str, str]] = []
    for where, row in json_lines(path, "questions"):
        if not {"category", "prompt"} <= row.keys():
            raise ConfigError(f'--questions: {where}: needs {{"category": ..., "prompt": ...}}')
        found.append((str(row["category"]), str(row["prompt"])))
    if not found:
        raise ConfigError(f"--questions: {path} is empty")
    return found


@explained
def main(argv: list[str] | None = None) -> None:
    """Write the three parts."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("model", type=Path, help="folder of SmolLM2-135M-Instruct")
    p.add_argument("out", type=Path, help="folder that receives the parts")
    p.add_argument(
        "--seconds",
        type=float,
        nargs=3,
        default=(60.0, 120.0, 90.0),
        metavar=("PROMPTS", "BRIEF", "OWN"),
        help="seconds for user turns, for brief answers, and for answers as it likes; 0 0: no answers",
    )
    p.add_argument("--prompts", type=int, default=1_000_000, help="user turns begun at most")
    p.add_argument("--questions", type=Path, help="answer these lines {category, prompt} instead of own ones")
    p.add_argument("--length", type=int, default=LENGTH, help="tokens of a question and its answer at most")
    p.add_argument(
        "--slots", type=int, help="texts that are written at once (default 2048 on a GPU, 16 on a CPU)"
    )
    p.add_argument("--seed", type=int, default=0, help="of all sampling")
    a = p.parse_args(argv)
    if a.slots is not None and a.slots < 1:
        p.error("--slots: at least 1")
    a.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    slots = a.slots or (2048 if device == "cuda" else 16)
    given = None if a.questions is None else read_questions(a.questions)
    made = Dialogues(a.model, a.out, slots, a.seed, device, a.length)
    prompts = given if given is not None else made.prompts(a.seconds[0], a.prompts)
    if given is None:
        random.Random(a.seed).shuffle(prompts)
    text = "".join(json.dumps({"category": c, "prompt": t}) + "\n" for c, t in prompts)
    (a.out / "prompts.jsonl").write_text(text, encoding="utf-8")
    made.say(f"{len(prompts)} prompts")
    made.save("brief", made.brief(prompts, a.seconds[1]), kept=True)
    made.save("own", made.own(prompts, a.seconds[2]), kept=False)


if __name__ == "__main__":
    sys.exit(main())

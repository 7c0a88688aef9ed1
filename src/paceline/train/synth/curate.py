"""What the demo learns from out of what a small model wrote, and what it is asked afterwards.

    python -m paceline.train.synth.curate DIALOGUES ... --out OUT --novel FILE ... --prompts 120000

DIALOGUES are folders that `dialogues` has written, with tokenizer.json of their writer. OUT/dialogues.jsonl
receives the answers that are worth learning: those that ended by themselves, are not too long and do not
loop; OUT/prompts.jsonl the questions for on-policy answers: the same model's, others of the generators, and
passages of novels. Whatever stands in the benchmark, wholly or nearly, is in neither.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from paceline.errors import ConfigError, explained
from paceline.train.data.filters import repeated_share
from paceline.train.data.held_out import HeldOut
from paceline.train.data.prompts import read_prompts
from paceline.train.synth.dialogue import Dialogue, Message, assistant, user
from paceline.train.synth.mix import Mix
from paceline.train.synth.prose import Continuations

BENCH = Path(__file__).parents[2] / "bench" / "prompts.jsonl"
OVERLAP, MAX_REPEATED, MAX_TOKENS = 0.3, 0.1, 200
PARTS = {"brief": None, "own": "Answer in detail."}
"""Parts of a dialogues folder, and the system message that tells the one from the other."""
_PROSE_EVERY = 6


def bench(*files: Path) -> HeldOut:
    """The benchmark's prompts, and those of `files`."""
    paths = [str(path) for path in (BENCH, *files)]
    return HeldOut((prompt.question for prompt in read_prompts(paths)), OVERLAP)


def worthwhile(folder: Path, part: str, system: str | None, refused: HeldOut) -> Iterator[dict[str, Any]]:
    """Lines {messages, category} of one part; none where the folder lacks it."""
    if not (folder / f"{part}.npz").exists():
        return
    asked = [json.loads(line) for line in (folder / "prompts.jsonl").open(encoding="utf-8")]
    writer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with np.load(folder / f"{part}.npz") as made:
        numbers, stopped, offsets, ids = (made[n] for n in ("number", "stopped", "offsets", "ids"))
    for i, number in enumerate(numbers.tolist()):
        answer, question = ids[offsets[i] : offsets[i + 1] - 1].tolist(), asked[number]
        if not stopped[i] or len(answer) > MAX_TOKENS or repeated_share(answer) > MAX_REPEATED:
            continue
        text = writer.decode(answer, skip_special_tokens=False).strip()
        if text and "<|" not in text and refused.refuses(question["prompt"]) is None:
            head = [{"role": "system", "content": system}] if system else []
            messages = [*head, user(question["prompt"]), assistant(text)]
            yield {"messages": messages, "category": question["category"]}


def questions(
    folders: list[Path], novels: list[str], refused: HeldOut, seed: int
) -> Iterator[dict[str, Any]]:
    """Questions without end: one that the small model wrote and one of the generators in turn, and a passage
    now and then. The generators' stream is another than the one that was trained on."""
    files = ((folder / "prompts.jsonl").open(encoding="utf-8") for folder in folders)
    asked = map(json.loads, chain.from_iterable(files))
    spoken = (
        {"messages": [user(a["prompt"])], "category": a["category"]}
        for a in asked
        if refused.refuses(a["prompt"]) is None
    )
    generated = map(_question, Mix(seed).stream())
    passages = Continuations(novels) if novels else None
    for index, line in enumerate(_in_turn(spoken, generated)):
        yield line
        if passages and index % _PROSE_EVERY == 0:
            yield _question(passages(seed, index, "train"))


def as_line(dialogue: Dialogue, messages: list[Message]) -> dict[str, Any]:
    """Some of a dialogue's messages, and what belongs to them, as a line of JSON."""
    line = {"messages": messages, "category": dialogue.category, "thinking": dialogue.thinking}
    return {**line, "tools": dialogue.tools} if dialogue.tools else line


def _question(dialogue: Dialogue) -> dict[str, Any]:
    return as_line(dialogue, dialogue.prompt)


def _in_turn(first: Iterable[Any], second: Iterator[Any]) -> Iterator[Any]:
    """One of each in turn; the second alone when the first is over."""
    for one in first:
        yield one
        yield next(second)
    yield from second


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> int:
    """Write JSON lines, by replacement; returns how many.

    Raises: ConfigError where the file cannot be written.
    """
    count, unfinished = 0, path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                count += 1
        unfinished.replace(path)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc}") from exc
    finally:
        unfinished.unlink(missing_ok=True)
    return count


@explained
def main(argv: list[str] | None = None) -> None:
    """Write both files."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("dialogues", type=Path, nargs="+")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--novel", type=Path, action="append", default=[], help="text of a novel")
    p.add_argument("--prompts", type=int, default=120_000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args(argv)
    for needed in (*(d / f for d in a.dialogues for f in ("prompts.jsonl", "tokenizer.json")), *a.novel):
        if not needed.is_file():  # told before anything that stands is overwritten
            p.error(f"{needed} does not exist")
    a.out.mkdir(parents=True, exist_ok=True)
    refused = bench()
    parts = (
        worthwhile(folder, part, system, refused) for folder in a.dialogues for part, system in PARTS.items()
    )
    novels = [path.read_text(encoding="utf-8") for path in a.novel]
    asked = islice(questions(a.dialogues, novels, refused, a.seed), a.prompts)
    print(f"{write_lines(a.out / 'dialogues.jsonl', chain.from_iterable(parts))} dialogues")
    print(f"{write_lines(a.out / 'prompts.jsonl', asked)} questions")


if __name__ == "__main__":
    sys.exit(main())

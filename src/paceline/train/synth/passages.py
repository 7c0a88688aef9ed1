"""Questions about passages of real texts, so that a small model also learns to answer behind long prompts.

    python -m paceline.train.synth.passages TEXT ... --out QUESTIONS.jsonl --count 20000

TEXTs are files, plain or .xz, of documents with blank lines between paragraphs. QUESTIONS are lines
{category, prompt} that `dialogues --questions` has answered; nothing near a benchmark prompt is among them.
"""

from __future__ import annotations

import argparse
import lzma
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from paceline.errors import explained
from paceline.train.synth.curate import bench, write_lines

SHORTEST, LONGEST = 250, 1_400
"""Characters of a passage; a token of English is about four."""
_LETTERS = 0.75
"""Share of letters and spaces from which on a paragraph is prose and no table or listing."""
_MARKUP = ("``", ":`", ".. ", "::")
_ASKED = {
    "extraction": (
        "Summarize the following text in one sentence.\n\n{p}",
        "Read this text and list its three most important points.\n\n{p}",
        "{p}\n\nWhich names and technical terms appear in the text above? List them, separated by commas.",
        "Extract the main topic of this passage.\n\n{p}",
        "Give the following passage a short title.\n\n{p}",
        "Here is a passage:\n\n{p}\n\nWhat is it about? Answer in one or two sentences.",
    ),
    "natural": (
        "Explain this text in simple words.\n\n{p}",
        "Rewrite the following passage so that a child understands it.\n\n{p}",
        "{p}\n\nWhat does this mean, and why does it matter?",
        "You are a teacher. Explain the text below to your class.\n\n{p}",
        "Summarize this in plain English:\n\n{p}",
    ),
    "reasoning": (
        "{p}\n\nWhat can you conclude from this text?",
        "Read the text and ask one question that it answers. Then answer it.\n\n{p}",
        "Based on the passage below, what would happen if its advice were not followed?\n\n{p}",
    ),
    "prose": (
        "Write one more sentence that could follow this text.\n\n{p}",
        "Describe the tone of this passage.\n\n{p}",
    ),
}


def passages(text: str, draw: random.Random) -> Iterator[str]:
    """Stretches of whole paragraphs, in the order of the text, each once."""
    wanted, held = draw.randint(SHORTEST, LONGEST), list[str]()
    for paragraph in text.split("\n\n"):
        plain = " ".join(paragraph.split())
        letters = sum(c.isalpha() or c == " " for c in plain)
        if not plain or letters < _LETTERS * len(plain) or any(mark in plain for mark in _MARKUP):
            held.clear()  # what follows a listing would not follow what precedes it
            continue
        held.append(plain)
        size = sum(map(len, held))
        if size >= wanted:
            if size <= LONGEST:
                yield "\n\n".join(held)
            wanted, held = draw.randint(SHORTEST, LONGEST), []


def questions(texts: list[str], seed: int) -> Iterator[dict[str, str]]:
    """Lines {category, prompt}, two a passage, in an order that the seed draws."""
    draw, refused = random.Random(seed), bench()
    asked = [(category, words) for category, many in _ASKED.items() for words in many]
    found = [
        (passage, *one) for text in texts for passage in passages(text, draw) for one in draw.sample(asked, 2)
    ]
    draw.shuffle(found)
    for passage, category, words in found:
        prompt = words.replace("{p}", passage)
        if refused.refuses(prompt) is None:
            yield {"category": category, "prompt": prompt}


@explained
def main(argv: list[str] | None = None) -> None:
    """Write the file."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("texts", type=Path, nargs="+")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--count", type=int, default=20_000)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args(argv)
    if a.count < 1:
        p.error("--count: at least 1")
    texts = []
    for path in a.texts:
        try:
            data = path.read_bytes()
            texts.append((lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8"))
        except (OSError, lzma.LZMAError, UnicodeDecodeError) as exc:
            p.error(f"cannot read {path}: {exc}")
    lines = list(islice(questions(texts, a.seed), a.count))
    if not lines:
        p.error("the texts hold no passage: paragraphs of prose, with blank lines between them")
    print(f"{a.out}: {write_lines(a.out, lines)} questions")


if __name__ == "__main__":
    sys.exit(main())

"""Questions, answered or not, at the end of long conversations.

    python -m paceline.train.synth.longer DIALOGUES.jsonl QUESTIONS.jsonl --out OUT.jsonl --count 8000

A model that has only seen short conversations answers otherwise behind long ones, and a drafter drafts badly
there. A line of OUT has a line of QUESTIONS behind turns of DIALOGUES, 2,000 to 11,000 characters of them:
a question alone, for `paceline train data`, or with its answer, for `paceline train target`.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.config.lines import json_lines
from paceline.errors import ConfigError, explained
from paceline.train.synth.curate import write_lines

SHORTEST, LONGEST = 2_000, 11_000
"""Characters of the earlier turns; a token of English is about four."""


def conversations(
    dialogues: list[dict[str, Any]], questions: Iterator[dict[str, Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """Lines until the questions, each perhaps with its answer, are over."""
    draw = random.Random(seed)
    for question in questions:
        turns: list[dict[str, Any]] = []
        wanted, held = draw.randint(SHORTEST, LONGEST), 0
        while held < wanted:
            earlier = [m for m in draw.choice(dialogues)["messages"] if m["role"] != "system"]
            turns += earlier
            held += sum(len(m["content"]) for m in earlier)
        head = [m for m in question["messages"] if m["role"] == "system"]
        last = [m for m in question["messages"] if m["role"] != "system"]
        yield {**question, "messages": [*head, *turns, *last]}


def _plain(path: Path) -> Iterator[dict[str, Any]]:
    """Lines without tools, whose texts are short.

    Raises: ConfigError for a file that cannot be read, or a line that is no conversation.
    """
    for where, row in json_lines(path, path.stem):
        try:
            texts = [m["content"] for m in row["messages"] if m["role"] != "system"]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("content that is no text")
        except (KeyError, TypeError) as exc:
            raise ConfigError(f"{where}: needs `messages` of `role` and `content`") from exc
        if not row.get("tools") and 0 < sum(map(len, texts)) < SHORTEST:
            yield row


def _is_single(row: dict[str, Any]) -> bool:
    """One question, perhaps behind a system message and before its answer."""
    roles = [message["role"] for message in row["messages"] if message["role"] != "system"]
    return roles in (["user"], ["user", "assistant"])


@explained
def main(argv: list[str] | None = None) -> int:
    """Write the file; 0, or 2 with a line that says what is wrong."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("dialogues", type=Path)
    p.add_argument("questions", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--count", type=int, default=8_000)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args(argv)
    if a.count < 1:
        p.error("--count: at least 1")
    dialogues = [row for row in _plain(a.dialogues) if row["messages"][-1]["role"] == "assistant"]
    single = [row for row in _plain(a.questions) if _is_single(row)]
    if not dialogues or not single:
        empty = a.questions if dialogues else a.dialogues
        wanted = "questions, answered or not" if dialogues else "dialogues that end with an answer"
        raise ConfigError(f"{empty} holds no line that could be taken: {wanted}, short, no tools")
    made = write_lines(a.out, islice(conversations(dialogues, iter(single), a.seed), a.count))
    print(f"{a.out}: {made} conversations")
    return 0


if __name__ == "__main__":
    sys.exit(main())

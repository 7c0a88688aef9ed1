"""Questions at the end of long conversations, for answers that have much context.

    python -m paceline.train.synth.longer DIALOGUES.jsonl QUESTIONS.jsonl --out OUT.jsonl --count 8000

A drafter that has only seen short conversations drafts badly behind long ones. A line of OUT has a question
of QUESTIONS (a single turn) behind turns of DIALOGUES, 2,000 to 13,000 characters of them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

SHORTEST, LONGEST = 2_000, 13_000
"""Characters of the earlier turns; a token of English is about four."""


def conversations(
    dialogues: list[dict[str, Any]], questions: Iterator[dict[str, Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """Prompt lines without end, or until the questions are over."""
    draw = random.Random(seed)
    for question in questions:
        turns: list[dict[str, Any]] = []
        wanted, held = draw.randint(SHORTEST, LONGEST), 0
        while held < wanted:
            earlier = [m for m in draw.choice(dialogues)["messages"] if m["role"] != "system"]
            turns += earlier
            held += sum(len(m["content"]) for m in earlier)
        yield {**question, "messages": [*turns, *question["messages"]]}


def _plain(path: Path) -> Iterator[dict[str, Any]]:
    """Lines without tools, whose texts are short."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if not row.get("tools") and sum(len(m["content"]) for m in row["messages"]) < SHORTEST:
                yield row


def main(argv: list[str] | None = None) -> None:
    """Write the file."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("dialogues", type=Path)
    p.add_argument("questions", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--count", type=int, default=8_000)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args(argv)
    single = (row for row in _plain(a.questions) if [m["role"] for m in row["messages"]] == ["user"])
    made = conversations(list(_plain(a.dialogues)), single, a.seed)
    with a.out.open("w", encoding="utf-8") as file:
        for line in islice(made, a.count):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

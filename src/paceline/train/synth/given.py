"""Given answers beside the target's own, as one folder that `paceline train drafter` and `mtp` read.

    python -m paceline.train.synth.given DIALOGUES.jsonl MODEL OUT --own ANSWERS --limit 60000

A drafter learns best from what its target writes, but a target that was trained on dialogues writes much as
they do, and dialogues cost no generation. OUT receives every sample of ANSWERS and the first `limit` of
DIALOGUES (lines of `paceline train target`'s `dialogues`), in the ids of MODEL's tokenizer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from paceline.train.data.shards import Sample, ShardWriter, read_meta, read_samples
from paceline.train.synth.dialogue import Dialogue
from paceline.train.synth.render import pieces

_AT_ONCE = 4096


def given(rows: Iterable[dict[str, Any]], tokenizer: Tokenizer) -> Iterator[Sample]:
    """A sample for each dialogue's last answer, its end-of-turn token included."""
    numbered = enumerate(rows)
    while group := list(islice(numbered, _AT_ONCE)):
        dialogues = [
            Dialogue(
                row["messages"], row.get("category") or "given", bool(row.get("thinking")), row.get("tools")
            )
            for _, row in group
        ]
        parts = [_prompt_and_answer(dialogue) for dialogue in dialogues]
        ids = iter(tokenizer.encode_batch_fast([p for part in parts for p in part], add_special_tokens=False))
        for (number, _), dialogue in zip(group, dialogues, strict=True):
            prompt, answer = next(ids).ids, next(ids).ids
            yield Sample(f"given/{number}", dialogue.category, dialogue.thinking, prompt, answer, "stop")


def _prompt_and_answer(dialogue: Dialogue) -> tuple[str, str]:
    """The text that the model is given, and what it is to write; what follows that is left out."""
    said = pieces(dialogue)
    learnt = max(i for i, piece in enumerate(said) if piece.learn)
    return "".join(piece.text for piece in said[:learnt]), said[learnt].text


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folder; a run that was stopped goes on."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("dialogues", type=Path)
    p.add_argument("model", type=Path, help="folder with tokenizer.json")
    p.add_argument("out", type=Path)
    p.add_argument("--own", type=Path, required=True, help="what `paceline train data` has written")
    p.add_argument("--limit", type=int, default=60000)
    a = p.parse_args(argv)
    tokenizer = Tokenizer.from_file(str(a.model / "tokenizer.json"))
    # No fingerprint: not all of it is the target's own.
    meta = {"vocab_size": read_meta(a.own)["vocab_size"], "own": str(a.own), "given": str(a.dialogues)}
    with a.dialogues.open(encoding="utf-8") as lines, ShardWriter(a.out, meta) as writer:
        rows = map(json.loads, islice(lines, a.limit))
        for samples in (read_samples(a.own), given(rows, tokenizer)):
            for sample in samples:
                if sample.id not in writer.done:
                    writer.write(sample)
    print(f"{a.out}: {writer.rows} samples")


if __name__ == "__main__":
    main()

"""Given answers beside the target's own, as one folder that `paceline train drafter` and `mtp` read.

    python -m paceline.train.targets.given DIALOGUES.jsonl MODEL OUT --own ANSWERS --limit 60000

A drafter learns best from what its target writes, but a target that was trained on dialogues writes much as
they do, and dialogues cost no generation. OUT receives every sample of ANSWERS and the first `limit` of
DIALOGUES (lines of `paceline train target`'s `dialogues`), in the ids of MODEL's tokenizer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from paceline.errors import ConfigError, explained
from paceline.models.hub import resolve_model
from paceline.models.registry import read_target_spec
from paceline.train.data.shards import Sample, ShardWriter, read_meta, read_samples
from paceline.train.settings.target import DialogueSource
from paceline.train.synth.dialogue import Dialogue
from paceline.train.synth.render import pieces
from paceline.train.targets.corpus import read_dialogues
from paceline.train.targets.tokenizer import read_tokenizer

_AT_ONCE = 4096


def given(dialogues: Iterable[Dialogue], tokenizer: Tokenizer) -> Iterator[Sample]:
    """A sample for each dialogue's last answer, with its end-of-turn token; empty ones are left out."""
    numbered = enumerate(dialogues)
    while group := list(islice(numbered, _AT_ONCE)):
        parts = [_prompt_and_answer(dialogue) for _, dialogue in group]
        ids = iter(tokenizer.encode_batch_fast([p for part in parts for p in part], add_special_tokens=False))
        for number, dialogue in group:
            prompt, answer = next(ids).ids, next(ids).ids
            if len(answer) > 1:
                name = f"given/{number}"
                yield Sample(name, dialogue.category, dialogue.thinking, prompt, answer, "stop")


def _prompt_and_answer(dialogue: Dialogue) -> tuple[str, str]:
    """The text that the model is given, and what it is to write; what follows that is left out."""
    said = pieces(dialogue)
    learnt = max(i for i, piece in enumerate(said) if piece.learn)
    return "".join(piece.text for piece in said[:learnt]), said[learnt].text


def write(dialogues: Path, model: Path, out: Path, own: Path, limit: int) -> int:
    """Write the folder, from wherever a stopped run left it; returns its number of samples.

    Raises: ConfigError for what cannot be read, and for answers of another vocabulary than the model's.
    """
    vocab, stands = read_target_spec(model).vocab_size, read_meta(own).get("vocab_size")
    if stands not in (None, vocab):
        raise ConfigError(f"{own} holds ids of a vocabulary of {stands}, {model} has {vocab}", key="own")
    # No fingerprint of weights: not all of it is the target's own.
    meta = {"vocab_size": vocab, "own": str(own), "given": str(dialogues), "limit": limit}
    source = DialogueSource(path=str(dialogues), kind="given")
    made = given(islice(read_dialogues(source), limit), read_tokenizer(model))
    with ShardWriter(out, meta) as writer:
        for samples in (read_samples(own), made):
            for sample in samples:
                if sample.id not in writer.done:
                    writer.write(sample)
    return writer.rows


@explained
def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0, or 2 with a line that says what is wrong."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("dialogues", type=Path)
    p.add_argument("model", help="a folder, a hub id, or `demo`")
    p.add_argument("out", type=Path)
    p.add_argument("--own", type=Path, required=True, help="what `paceline train data` has written")
    p.add_argument("--limit", type=int, default=60000)
    a = p.parse_args(argv)
    if a.limit < 0:
        raise ConfigError("--limit is negative: give 0 or more", key="limit")
    rows = write(a.dialogues, resolve_model(a.model), a.out, a.own, a.limit)
    print(f"{a.out}: {rows} samples")
    return 0


if __name__ == "__main__":
    sys.exit(main())

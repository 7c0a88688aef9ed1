"""SmolLM2's own answers from `python -m paceline.train.synth.dialogues`, as a folder that
`paceline train drafter` reads.

    python examples/smollm2/answers.py MODEL OUT DIALOGUES ... --held-out PROMPTS.jsonl

The same as `paceline train data` with data.yaml, for answers that a rollout on a GPU has made already: those
under the model's own system prompt, and the brief ones. What stands in the benchmark or in PROMPTS is left
out, and so is what loops.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from transformers import AutoTokenizer

from paceline.train.data.filters import repeated_share
from paceline.train.data.held_out import HeldOut
from paceline.train.data.produce import model_fingerprint
from paceline.train.data.shards import Sample, ShardWriter
from paceline.train.synth.curate import bench
from paceline.train.synth.dialogues import BRIEF, SYSTEM

MAX_REPEATED = 0.15
PARTS = {"own": SYSTEM, "brief": BRIEF}


def samples(folder: Path, part: str, tokenizer: AutoTokenizer, held_out: HeldOut) -> Iterator[Sample]:
    """The answers of one part of a folder that are worth learning from."""
    asked = [json.loads(line) for line in (folder / "prompts.jsonl").open(encoding="utf-8")]
    with np.load(folder / f"{part}.npz") as made:
        numbers, stopped, offsets, ids = (made[n] for n in ("number", "stopped", "offsets", "ids"))
    head = f"<|im_start|>system\n{PARTS[part]}<|im_end|>\n<|im_start|>user\n"
    texts = [f"{head}{asked[n]['prompt']}<|im_end|>\n<|im_start|>assistant\n" for n in numbers.tolist()]
    prompts = tokenizer(texts, add_special_tokens=False).input_ids
    place = folder.resolve()
    for i, number in enumerate(numbers.tolist()):
        answer, question = ids[offsets[i] : offsets[i + 1]].tolist(), asked[number]
        if repeated_share(answer) <= MAX_REPEATED and held_out.refuses(question["prompt"]) is None:
            name = f"{place.parent.name}/{place.name}/{part}/{i}"
            finish: Literal["stop", "length"] = "stop" if stopped[i] else "length"
            yield Sample(name, question["category"], False, prompts[i], answer, finish)


def main() -> None:
    """Write the folder."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("model", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("dialogues", type=Path, nargs="+")
    p.add_argument(
        "--held-out", type=Path, nargs="*", default=[], help="JSON lines with prompts to leave out"
    )
    a = p.parse_args()
    for needed in (a.model / "config.json", *(d / "prompts.jsonl" for d in a.dialogues), *a.held_out):
        if not needed.is_file():
            p.error(f"{needed} does not exist")
    if a.out.exists():
        p.error(f"{a.out} exists already: remove it, or name another folder")
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    held_out = bench(*a.held_out)
    meta = {"model_fingerprint": model_fingerprint(a.model), "vocab_size": len(tokenizer), "thinking": False}
    with ShardWriter(a.out, meta) as writer:
        for folder in a.dialogues:
            for part in PARTS:
                if (folder / f"{part}.npz").exists():
                    for sample in samples(folder, part, tokenizer, held_out):
                        writer.write(sample)
        print(f"{writer.rows} answers")


if __name__ == "__main__":
    main()

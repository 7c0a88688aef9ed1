"""SmolLM2's own answers from `python -m paceline.train.synth.dialogues`, as a folder that
`paceline train drafter` reads.

    python examples/smollm2/answers.py MODEL DIALOGUES OUT

The same as `paceline train data` with data.yaml, for answers that a rollout on a GPU has made already. What
stands in the benchmark and what loops is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from paceline.train.data.filters import repeated_share
from paceline.train.data.held_out import HeldOut
from paceline.train.data.produce import model_fingerprint
from paceline.train.data.shards import Sample, ShardWriter
from paceline.train.synth.curate import BENCH
from paceline.train.synth.dialogues import SYSTEM

MAX_REPEATED, OVERLAP = 0.15, 0.3


def main() -> None:
    """Write the folder."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("model", "dialogues", "out"):
        p.add_argument(name, type=Path)
    a = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    asked = [json.loads(line) for line in (a.dialogues / "prompts.jsonl").open(encoding="utf-8")]
    held_out = HeldOut((json.loads(line)["prompt"] for line in BENCH.open(encoding="utf-8")), OVERLAP)
    with np.load(a.dialogues / "own.npz") as made:
        numbers, stopped, offsets, ids = (made[n] for n in ("number", "stopped", "offsets", "ids"))
    texts = [
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{asked[n]['prompt']}<|im_end|>\n"
        "<|im_start|>assistant\n"
        for n in numbers.tolist()
    ]
    prompts = tokenizer(texts, add_special_tokens=False).input_ids
    meta = {"model_fingerprint": model_fingerprint(a.model), "vocab_size": len(tokenizer), "thinking": False}
    with ShardWriter(a.out, meta) as writer:
        for i, number in enumerate(numbers.tolist()):
            answer = ids[offsets[i] : offsets[i + 1]].tolist()
            question = asked[number]
            if repeated_share(answer) <= MAX_REPEATED and held_out.refuses(question["prompt"]) is None:
                finish = "stop" if stopped[i] else "length"
                writer.write(Sample(str(i), question["category"], False, prompts[i], answer, finish))
        print(f"{writer.rows} of {len(numbers)} answers")


if __name__ == "__main__":
    main()

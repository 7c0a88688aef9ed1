"""A corpus of a few kilobytes and a hybrid of a few thousand parameters."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.train.settings.target import TargetSettings

SENTENCES = (
    "The cat sat on the mat. ",
    "A dog ran over the hill. ",
    "It rains in the town. ",
    "We go home. ",
)
MODEL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "max_position_embeddings": 256,
    "partial_rotary_factor": 0.5,
}  # fmt: skip


def write_corpus(folder: Path) -> None:
    """text.txt: 12 documents; chats.jsonl: 40 dialogues."""
    texts = ["".join(SENTENCES[(i + j) % 4] for j in range(6 + i)) for i in range(12)]
    (folder / "text.txt").write_text("\n<|endoftext|>\n".join(texts), encoding="utf-8")
    with (folder / "chats.jsonl").open("w", encoding="utf-8") as file:
        for i in range(40):
            turns = [("user", f"Say {i}."), ("assistant", f"You want {i}: {i} it is.")]
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages, "thinking": i % 2 == 1}) + "\n")


def settings(folder: Path, **changes) -> TargetSettings:
    """A run of six steps in `folder`, made of `write_corpus`."""
    values = {
        "out": str(folder / "out"),
        "tokenizer": {"vocab_size": 400},
        "model": MODEL,
        "text": [{"path": str(folder / "text.txt"), "kind": "text"}],
        "dialogues": [{"path": str(folder / "chats.jsonl"), "kind": "chat", "repeat": 2}],
        "synth": [{"count": 6, "seed": 3, "weights": {"arithmetic": 1}, "held_out": 4}],
        "held_out": {"share": 0.2, "rows": 2},
        "rows": 2,
        "length": 64,
        "head_rows": 50,
        "optim": {
            "max_steps": 6, "learning_rate": 0.01, "log_every": 2, "save_every": 3, "eval_every": 3,
            "optimizer": "muon",
        },
    }  # fmt: skip
    values.update(changes)
    return TargetSettings.model_validate_json(json.dumps({k: v for k, v in values.items() if v is not None}))

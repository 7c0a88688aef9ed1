"""A smaller vocabulary inside a larger one: the first ids of a byte-level BPE.

A BPE whose ids follow the order of its merges contains every smaller one: its first N ids with the merges
that they need. A model that keeps the first N rows of its embedding table can then read any text in the
smaller vocabulary, in more and shorter tokens that it has seen before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from paceline.errors import CheckpointError

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MASK = "<|mask|>"
_TURNS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def truncated(source: Path, size: int) -> Tokenizer:
    """The first `size` ids of the tokenizer.json `source`; its special tokens beyond the three of chat turns
    become the marks of Qwen's chat format (visible text, as there), the mask token and reserved ones.

    Raises: CheckpointError where ids do not follow the order of merges or special tokens are too few.
    """
    raw: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    model = raw["model"]
    ids: dict[str, int] = model["vocab"]
    made = [ids["".join(m if isinstance(m, list) else m.split(" "))] for m in model["merges"]]
    specials = sorted((t["id"], t["content"]) for t in raw["added_tokens"])
    names = [name for _, name in specials]
    if made != sorted(made) or [i for i, _ in specials] != list(range(len(specials))):
        raise CheckpointError(f"{source}: ids do not follow the order of merges: it cannot be cut short")
    if names[:3] != list(_TURNS) or len(names) < 3 + len(MARKS) + 1:
        raise CheckpointError(f"{source}: expected {', '.join(_TURNS)} and at least 7 more special tokens")
    new = [*_TURNS, *MARKS, MASK]
    new += [f"<|reserved_{i}|>" for i in range(len(names) - len(new))]
    kept = {token: i for token, i in ids.items() if len(names) <= i < size}
    model["vocab"] = {**{name: i for i, name in enumerate(new)}, **kept}
    model["merges"] = [m for m, i in zip(model["merges"], made, strict=True) if i < size]
    raw["added_tokens"] = [
        {"id": i, "content": name, "special": name not in MARKS, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, name in enumerate(new)
    ]  # fmt: skip
    return Tokenizer.from_str(json.dumps(raw))


def save(tokenizer: Tokenizer, folder: Path, chat_template: str, max_length: int) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": chat_template,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

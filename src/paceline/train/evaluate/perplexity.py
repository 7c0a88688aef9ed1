"""Perplexity of held-out texts, from the engine's own logits."""

from __future__ import annotations

import lzma
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline import LLM

WINDOW = 1024
"""Tokens read at once; each window begins without knowledge of the one before."""


def read_text(name: str, path: str) -> str:
    """A text file's content, unpacked where its name ends in .xz. Raises ConfigError that names the key."""
    try:
        raw = Path(path).read_bytes()
        return (lzma.decompress(raw) if path.endswith(".xz") else raw).decode("utf-8")
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise ConfigError(f"texts.{name}: {path} cannot be read ({error})", key=f"texts.{name}") from None


def perplexity(llm: LLM, text: str, tokens: int) -> dict[str, float]:
    """Nat a token, perplexity and bits a byte over the first `tokens` tokens.

    The first token of a window is read and not predicted.
    """
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode_bare(text)[:tokens]
    size = min(WINDOW, llm.max_model_len)
    total, counted, seen = 0.0, 0, 0
    for at in range(0, len(ids), size):
        window = ids[at : at + size]
        if len(window) < 2:
            break
        logits = llm.teacher_forced_logits(window)[:-1]
        wanted = torch.tensor(window[1:], device=logits.device)
        total += float(torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum"))
        counted += len(window) - 1
        seen += len(llm.tokenizer.decode(window[1:]).encode())
    if not counted:
        raise ConfigError("a text of `texts` holds fewer than two tokens: give a longer one", key="texts")
    nat = total / counted
    return {
        "tokens": counted,
        "nat_per_token": nat,
        "perplexity": math.exp(nat),
        "bits_per_byte": total / math.log(2) / seen,
    }

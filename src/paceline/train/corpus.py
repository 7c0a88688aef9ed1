"""Corpus folders: reading documents, dealing them into parts, encoding them to token streams.

A source is ``*.txt.xz`` or ``*.txt`` whose documents are separated by a line ``<|endoftext|>``; ``*.md``,
``*.rst`` and ``*.py`` files are one document each. Parts are ``train``, ``draft`` (see SplitConfig) and
``held_out``.
"""

from __future__ import annotations

import hashlib
import lzma
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from paceline.errors import ConfigError
from paceline.train.config import DemoConfig, SplitConfig

END_OF_TEXT = "<|endoftext|>"
PARTS = ("train", "draft", "held_out")
_MIN_DOCUMENT = 100


@dataclass(frozen=True, slots=True)
class Document:
    """One document: the file it came from, the kind of text, the text."""

    source: str
    kind: str
    text: str


def source_files(corpus: Path, config: DemoConfig) -> list[tuple[Path, str]]:
    """(file, kind) pairs: those that the config names, or every text file when it names none."""
    if config.sources:
        pairs = [(corpus / s.file, s.kind) for s in config.sources]
        for path, _ in pairs:
            if not path.is_file():
                raise ConfigError(
                    f"corpus file {path} is missing: give the folder that holds it with --corpus",
                    key="corpus",
                )
        return pairs
    if not corpus.is_dir():
        raise ConfigError(f"corpus folder {corpus} does not exist", key="corpus")
    suffixes = (".txt", ".txt.xz", ".md", ".rst", ".py")
    files = sorted(p for p in corpus.iterdir() if p.is_file() and p.name.endswith(suffixes))
    if not files:
        raise ConfigError(f"no text files ({', '.join(suffixes)}) in {corpus}", key="corpus")
    return [(p, "text") for p in files]


def _read(path: Path) -> str:
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return raw.decode("utf-8", errors="replace")


def _pieces(text: str, limit: int) -> Iterator[str]:
    """Cut a very long document at blank lines, so that a part of it can be held out."""
    while len(text) > 2 * limit:
        cut = text.find("\n\n", limit)
        if cut < 0 or cut > 2 * limit:
            cut = limit
        yield text[:cut]
        text = text[cut:].lstrip("\n")
    yield text


def read_documents(corpus: Path, config: DemoConfig) -> list[list[Document]]:
    """Documents of every source, one list a source."""
    out = []
    for path, kind in source_files(corpus, config):
        texts = _read(path).split(f"{END_OF_TEXT}\n") if ".txt" in path.name else [_read(path)]
        limit = config.split.max_document_bytes
        pieces = [
            p.strip("\n") for t in texts for p in _pieces(t.replace(END_OF_TEXT, "").strip("\n"), limit)
        ]
        out.append([Document(path.name, kind, p) for p in pieces if len(p) >= _MIN_DOCUMENT])
    return out


def deal(sources: list[list[Document]], split: SplitConfig) -> dict[str, list[Document]]:
    """Part name -> documents, by rank of the text's hash within each source, so that every source is held
    out in part."""
    parts: dict[str, list[Document]] = {p: [] for p in PARTS}
    for docs in sources:
        ranked = sorted(docs, key=lambda d: hashlib.sha256(d.text.encode()).digest())
        held = math.ceil(split.held_out * len(ranked)) if split.held_out else 0
        pool = math.ceil(split.draft_pool * len(ranked)) if split.draft_pool else 0
        if held + pool >= len(ranked):  # a source of one or two documents is trained on whole
            held = pool = 0
        parts["held_out"] += ranked[:held]
        parts["draft"] += ranked[held : held + pool]
        parts["train"] += ranked[held + pool :]
    random.Random(split.seed).shuffle(parts["train"])
    return parts


def encode(tokenizer: Tokenizer, docs: list[Document], eos: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Token stream [N] uint16: every document preceded by the end-of-text id (also the very first one)."""
    chunks: list[np.ndarray[Any, np.dtype[np.uint16]]] = []
    for start in range(0, len(docs), 256):
        for enc in tokenizer.encode_batch([d.text for d in docs[start : start + 256]]):
            chunks.append(np.array([eos, *enc.ids], dtype=np.uint16))
    chunks.append(np.array([eos], dtype=np.uint16))
    return np.concatenate(chunks)

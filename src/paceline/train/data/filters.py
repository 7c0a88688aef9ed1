"""Which answers are kept, and a log of those that are not, so that nobody writes them a second time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from paceline.errors import ConfigError
from paceline.train.data.shards import mend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.train.data.shards import Sample
    from paceline.train.settings.data import FilterSettings

LOOP_GRAM = 12
DROPPED_FILE = "dropped.jsonl"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no token is lost in a product


def repeated_share(ids: Sequence[int], gram: int = LOOP_GRAM) -> float:
    """Share of tokens that `repeated_tokens` counts: 0 for text without loops, near 1 for one that goes round
    in circles."""
    return repeated_tokens(ids, gram) / len(ids) if ids else 0.0


def repeated_tokens(ids: Sequence[int], gram: int = LOOP_GRAM) -> int:
    """How many tokens stand inside a `gram`-token sequence which `ids` holds at least twice; all its places
    count. Grams are compared by a 64-bit hash."""
    count = len(ids) - gram + 1
    if count < 2:
        return 0
    tokens = np.asarray(ids, np.uint64) + np.uint64(1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(gram):
        hashes = (hashes ^ tokens[offset : offset + count]) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    _, which, times = np.unique(hashes, return_inverse=True, return_counts=True)
    starts = np.zeros(len(ids) + 1, np.int64)
    repeated = np.flatnonzero(times[which] > 1)
    starts[repeated] += 1
    starts[repeated + gram] -= 1
    return int((starts.cumsum()[:-1] > 0).sum())


def reason_to_drop(sample: Sample, settings: FilterSettings) -> str | None:
    """Why an answer is not kept: "cut", "short" or "repetition"; None: it is."""
    if sample.finish == "length" and settings.cut == "drop":
        return "cut"
    if len(sample.answer_ids) < settings.min_tokens:
        return "short"
    if settings.max_repeated is not None and repeated_share(sample.answer_ids) > settings.max_repeated:
        return "repetition"
    return None


class DropLog:
    """`dropped.jsonl` in a folder of samples: id, reason and length of every answer that was not kept.

    What stands from a stopped run is read at construction, its torn last line cut off.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DROPPED_FILE
        self._file: IO[str] | None = None
        self.done: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.tokens = 0
        mend(self._path)
        if self._path.exists():
            with self._path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    self._read(line, number)

    def add(self, sample: Sample, reason: str) -> None:
        """Log an answer; it is in the operating system's hands on return."""
        self._file = self._file or self._path.open("a", encoding="utf-8")
        row = {"id": sample.id, "reason": reason, "tokens": len(sample.answer_ids)}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()
        self._count(sample.id, reason, len(sample.answer_ids))

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()

    def _count(self, name: str, reason: str, tokens: int) -> None:
        self.done.add(name)
        self.counts[reason] += 1
        self.tokens += tokens

    def _read(self, line: str, number: int) -> None:
        try:
            row = json.loads(line)
            self._count(str(row["id"]), str(row["reason"]), int(row["tokens"]))
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                f"{self._path}, line {number}: unreadable: --force begins anew", key="out"
            ) from None

"""Which prompts are answered: each once, and none that something is measured on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paceline.errors import ConfigError
from paceline.train.data.prompts import Prompt, normalised, read_prompts

if TYPE_CHECKING:
    from paceline.train.settings.data import DataSettings

GRAM = 13
"""Words and signs of a gram: the length that GPT-3's and later decontaminations compare by."""
_ALONE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"  # scripts without spaces: a character is a word
_WORD = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])\w)+|[^\w\s]")
Reason = Literal["duplicate", "held_out", "near_held_out"]


class HeldOut:
    """Questions that must not be answered, and those too near to one of them.

    Equal: the same text once case, spacing and Unicode form are set aside. Near: of the 13-grams of the
    shorter of two texts, a share of at least `overlap` stands in both; texts under 13 words have none. (A
    sign is a word, and so is a Chinese, Japanese or Korean character.)
    """

    def __init__(self, questions: Iterable[str], overlap: float) -> None:
        self._overlap = overlap
        self._texts: set[str] = set()
        self._sizes: list[int] = []
        self._owners: dict[tuple[str, ...], list[int]] = {}
        for question in questions:
            text = normalised(question)
            if text not in self._texts:
                self._texts.add(text)
                found = grams(text)
                for gram in found:
                    self._owners.setdefault(gram, []).append(len(self._sizes))
                self._sizes.append(len(found))

    def __len__(self) -> int:
        """Different questions."""
        return len(self._texts)

    def refuses(self, question: str) -> Literal["held_out", "near_held_out"] | None:
        """Why a question must not be answered; None: it may be."""
        if not self._texts:
            return None
        text = normalised(question)
        if text in self._texts:
            return "held_out"
        found = grams(text) if self._owners else set()
        shared = Counter(owner for gram in found for owner in self._owners.get(gram, ()))
        near = any(
            count >= self._overlap * min(len(found), self._sizes[owner]) for owner, count in shared.items()
        )
        return "near_held_out" if near else None


def grams(text: str) -> set[tuple[str, ...]]:
    """The 13-grams of a normalised text's words and signs."""
    words = _WORD.findall(text)
    return {tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)}


@dataclass(slots=True)
class Selection:
    """Which lines of the prompt files are answered; a byte a line, so that millions fit."""

    keep: bytearray = field(default_factory=bytearray)
    counts: Counter[str] = field(default_factory=Counter)
    """Prompts read, kept, beyond the limit, and refused by reason."""
    categories: Counter[str] = field(default_factory=Counter)
    """Prompts kept, by category."""


def select(settings: DataSettings) -> Selection:
    """Read all prompts once and decide.

    Raises ConfigError for unreadable lines, where nothing is left, and, as `held_out_action` says, where a
    held-out prompt stands among them.
    """
    held_out = HeldOut((p.question for p in read_prompts(settings.held_out, "held_out")),
                       settings.held_out_overlap)  # fmt: skip
    selection, seen = Selection(), set[bytes]()
    for prompt in read_prompts(settings.prompts):
        reason: str | None = held_out.refuses(prompt.question)
        if reason is None and prompt.digest in seen:
            reason = "duplicate"
        if reason is None and settings.limit is not None and selection.counts["kept"] >= settings.limit:
            reason = "beyond_limit"
        selection.counts["read"] += 1
        selection.counts[reason or "kept"] += 1
        selection.keep.append(reason is None)
        if reason is None:
            seen.add(prompt.digest)
            selection.categories[prompt.category or ""] += 1
    _check(settings, selection)
    return selection


def selected(settings: DataSettings, selection: Selection) -> Iterator[Prompt]:
    """The prompts that `select` has kept, read anew."""
    for keep, prompt in zip(selection.keep, read_prompts(settings.prompts), strict=True):
        if keep:
            yield prompt


def _check(settings: DataSettings, selection: Selection) -> None:
    counts = selection.counts
    refused = counts["held_out"] + counts["near_held_out"]
    if refused and settings.held_out_action == "error":
        raise ConfigError(
            f"{refused} of {counts['read']} prompts are held out ({counts['held_out']} equal, "
            f"{counts['near_held_out']} near): take them out, or set `held_out_action: drop`",
            key="held_out",
        )
    if not counts["kept"]:
        raise ConfigError(
            f"none of {counts['read']} prompts is left to be answered ({refused} are held out)", key="prompts"
        )

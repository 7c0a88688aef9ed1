"""Marked text that is still to be read, with questions about it that may have to wait for more.

Every question is answered from the text alone. If the text so far leaves the answer open, `NeedMore` is
raised: nothing is decided until it is decided for good, which is why the cut of the output into increments
cannot show in the result. Once `final` is set nothing is open any more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.serve.parsers.tags import TAGS

BLANK = " \t\r\n"
"""The characters that count as whitespace around markup."""
MARKS = "".join(TAGS)
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
NAME_CHARACTERS = {FUNCTION: f"[^<>\\s{MARKS}]{{1,128}}", PARAMETER: f"[^<>\\r\\n{MARKS}]{{1,128}}"}
"""What a tool's and a parameter's name may consist of; anything else is no markup but text."""

_NAME = {opener: re.compile(pattern) for opener, pattern in NAME_CHARACTERS.items()}
_STOP = re.compile(f"[<{MARKS}]")
_MARK = re.compile(f"[{MARKS}]")
_NOT_BLANK = re.compile(f"[^{BLANK}]")


class NeedMore(Exception):
    """The text so far does not say; ask again when there is more."""


@dataclass(frozen=True, slots=True)
class Named:
    """An opening such as `<function=NAME>`."""

    name: str
    end: int
    """Where the text goes on behind it."""


class Source:
    """Text from `pos` on is unread. Positions are indexes into `text` and last until the next `feed`."""

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.final = False

    def feed(self, text: str) -> None:
        """Append text and forget what has been read."""
        self.text = self.text[self.pos :] + text
        self.pos = 0

    @property
    def exhausted(self) -> bool:
        """Whether all text has been read."""
        return self.pos == len(self.text)

    def take(self, end: int) -> str:
        """Read on to `end`."""
        taken = self.text[self.pos : end]
        self.pos = end
        return taken

    def take_plain(self, *, markup: bool) -> str:
        """Read on to the next mark or, with `markup`, the next "<"; "" if one stands here."""
        found = (_STOP if markup else _MARK).search(self.text, self.pos)
        return self.take(len(self.text) if found is None else found.start())

    def past_blanks(self, at: int) -> int:
        """First position from `at` on that is not whitespace; the text's length if the output ends first."""
        found = _NOT_BLANK.search(self.text, at)
        if found is not None:
            return found.start()
        if not self.final:
            raise NeedMore
        return len(self.text)

    def has(self, at: int, word: str) -> bool:
        """Whether `word` stands at `at`."""
        if self.text.startswith(word, at):
            return True
        if not self.final and word.startswith(self.text[at : at + len(word)]):
            raise NeedMore
        return False

    def cut_short(self, at: int, *words: str) -> bool:
        """Whether the output ended inside one of `words`, begun at `at`."""
        rest = self.text[at : at + 16]
        return self.final and rest != "" and any(word.startswith(rest) and word != rest for word in words)

    def named(self, at: int, opener: str) -> Named | None:
        """The `opener`, a name and ">" at `at`; None if something else stands there."""
        if not self.has(at, opener):
            return None
        begin = at + len(opener)
        found = _NAME[opener].match(self.text, begin)
        end = begin if found is None else found.end()
        if end == len(self.text):
            if self.final:
                return None
            raise NeedMore
        if found is None or self.text[end] != ">":
            return None
        return Named(found[0].strip(), end + 1) if found[0].strip() else None

    def unclosed_name(self, at: int, opener: str) -> bool:
        """Whether the output ended inside the name behind `opener`, begun at `at`."""
        if not (self.final and self.text.startswith(opener, at)):
            return False
        begin = at + len(opener)
        found = _NAME[opener].match(self.text, begin)
        return len(self.text) == (begin if found is None else found.end())

    def partial_tail(self, at: int, *words: str) -> int:
        """Where, from `at` on, the beginning of one of `words` stands at the text's end; else the length."""
        begin = self.text.rfind("<", max(at, len(self.text) - max(map(len, words))))
        if begin >= 0 and any(word.startswith(self.text[begin:]) for word in words):
            return begin
        return len(self.text)

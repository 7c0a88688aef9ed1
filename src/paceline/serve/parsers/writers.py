"""Reasoning and content on their way out: which whitespace is markup and which is the model's.

The chat template puts newlines around its tags, so they are the template's and not part of the text:

* reasoning loses the newlines at its beginning and those before the tag (or call) that ends it;
* content loses the blank lines behind a tag or call, and the whitespace before a call unless more content
  follows the call, and then it keeps them as the gap between the two;
* content between two tags or calls that is only whitespace is dropped, so is such content at either end.

All other whitespace is kept as it is, and so is an output without tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.serve.parsers.base import ContentDelta, Event, ReasoningDelta
from paceline.serve.parsers.source import BLANK
from paceline.serve.parsers.tags import spell

_QUOTING = re.compile(r"(```\w*|<tool_call>)\Z")
"""What stands on the line before markup that is only shown."""


class ReasoningWriter:
    """One think block after the other."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        self._put = put
        self._held = ""  # newlines that are dropped if the block ends here
        self._fresh = True
        self.blank = True
        """Whether this block holds nothing but whitespace so far."""

    def write(self, marked: str) -> None:
        """More reasoning."""
        text = self._held + spell(marked)
        if self._fresh:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if body:
            self._fresh = False
            self.blank = self.blank and not body.strip(BLANK)
            self._put(ReasoningDelta(body))

    def close(self) -> None:
        """The block has ended by a tag or a call."""
        self._held, self._fresh, self.blank = "", True, True

    def finish(self) -> None:
        """The output has ended inside the block: newlines at its end may be the model's."""
        if self._held:
            self._put(ReasoningDelta(self._held))
        self._held = ""


class ContentWriter:
    """Content, in sections that tags and calls divide."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        self._put = put
        self._held = ""  # whitespace at the end of this section
        self._gap = ""  # whitespace at the end of the last section that held text
        self.fresh = True
        """Whether this section holds nothing but whitespace so far."""
        self._tail = ""  # the last few characters, whitespace at the end aside
        self._first = True  # no tag or call has come before this section
        self.blank = True
        """Whether there has been nothing but whitespace so far, in all sections."""

    def write(self, marked: str) -> None:
        """More content."""
        text = self._held + spell(marked)
        body = text.rstrip(BLANK)
        self._held = text[len(body) :]
        if not body:
            return
        if self.fresh and not self._first:
            begin = len(body) - len(body.lstrip(BLANK))
            body = self._gap + body[body.rfind("\n", 0, begin) + 1 :]
        self._gap, self.fresh, self.blank = "", False, False
        self._tail = (self._tail + body)[-24:]
        self._put(ContentDelta(body))

    def divide(self) -> None:
        """A tag or a piece of a call stands here."""
        if not self.fresh:
            self._gap = self._held
        self._held, self.fresh, self._first = "", True, False

    def finish(self) -> None:
        """The output has ended; whitespace at its end is the model's unless a tag stands before it."""
        if self._held and (self._first or not self.fresh):
            self._put(ContentDelta(self._held))
        self._held = ""

    @property
    def invites_markup(self) -> bool:
        """Whether a line or section begins here and no code fence or spelled tag has announced a quote."""
        return self.fresh or ("\n" in self._held and not _QUOTING.search(self._tail))

"""The inside of one tool call: parameters, their values, and where each of them ends.

The rules stand in `qwen3`. A value that is a string is passed on while it grows, up to where the text might
be the beginning of its end; every other value stays in the source until it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.serve.parsers.arguments import ArgumentsWriter
from paceline.serve.parsers.schema import ParameterKinds
from paceline.serve.parsers.source import (
    END_FUNCTION,
    END_PARAMETER,
    FUNCTION,
    PARAMETER,
    Named,
    NeedMore,
    Source,
)
from paceline.serve.parsers.tags import CLOSE_CALL, OPEN_CALL, spell
from paceline.serve.parsers.writers import ContentWriter

_ENDS = re.compile(f"{END_PARAMETER}|{END_FUNCTION}|{PARAMETER}|{CLOSE_CALL}")
"""All that can end a value."""


class CallReader:
    """Reads from behind `<function=NAME>` to what ends the call."""

    def __init__(
        self,
        source: Source,
        kinds: ParameterKinds,
        put: Callable[[str], None],
        content: ContentWriter,
    ) -> None:
        """`put` takes the JSON text of the arguments, `content` the text that belongs to no parameter."""
        self._source = source
        self._arguments = ArgumentsWriter(kinds)
        self._put = put
        self._content = content
        self._in_value = False
        self._skip_newline = False  # the value's first newline is still to come
        self._begun = False  # some of the value has been passed on
        self._searched = 0  # how far behind `pos` no end can begin

    def read(self) -> bool:
        """Read one piece; False at the end of the call. `NeedMore` as everywhere."""
        return self._read_value() if self._in_value else self._read_between()

    def finish(self) -> None:
        """The output has ended: close a value that is still open."""
        if self._in_value:
            text = self._source.text
            at = text.rfind("</", self._source.pos)
            cut = at >= 0 and self._source.cut_short(at, END_PARAMETER, END_FUNCTION)
            end = self._line_begin(at) if cut and self._at_line_begin(at) else self._trim(len(text))
            self._close_value(end, len(text))

    def end(self) -> str:
        """The JSON text that closes the arguments."""
        return self._arguments.end()

    def _read_between(self) -> bool:
        source = self._source
        if plain := source.take_plain(markup=True):
            self._content.write(plain)
            return True
        at = source.pos
        if source.text[at] in (CLOSE_CALL, OPEN_CALL):
            return False
        if source.text[at] == "<":
            if source.has(at, END_FUNCTION):
                source.pos += len(END_FUNCTION)
                return False
            if (opening := source.named(at, PARAMETER)) is not None:
                self._open_value(opening)
                return True
            if source.named(at, FUNCTION) is not None:
                return False
            if self._is_cut_markup(at):
                source.pos = len(source.text)
                return True
        self._content.write(source.take(at + 1))
        return True

    def _is_cut_markup(self, at: int) -> bool:
        source = self._source
        cut = source.cut_short(at, END_FUNCTION, PARAMETER, FUNCTION)
        return cut or source.unclosed_name(at, PARAMETER) or source.unclosed_name(at, FUNCTION)

    def _open_value(self, opening: Named) -> None:
        self._content.divide()
        self._source.pos = opening.end
        self._in_value, self._skip_newline, self._begun, self._searched = True, True, False, 0
        self._put(self._arguments.open(opening.name))

    def _read_value(self) -> bool:
        source = self._source
        if self._skip_newline:
            source.pos += source.text[source.pos] == "\n"
            self._skip_newline = False
        at = source.pos + self._searched
        try:
            while (found := _ENDS.search(source.text, at)) is not None:
                at = found.start()
                if self._ends(found[0], at):
                    self._end_value(found[0], at)
                    return True
                at = found.end()
            at = source.partial_tail(at, END_PARAMETER, END_FUNCTION, PARAMETER)
            raise NeedMore
        except NeedMore:
            self._pass_on(at)
            raise

    def _ends(self, word: str, at: int) -> bool:
        """Whether `word`, which stands at `at`, ends the value."""
        source = self._source
        if word == PARAMETER:
            if not self._at_line_begin(at):
                return False
            opening = source.named(at, PARAMETER)
            return opening is not None and self._arguments.expects(opening.name)
        behind = source.past_blanks(at + len(word))
        if behind == len(source.text) or source.text[behind] == OPEN_CALL:
            return True
        if word == CLOSE_CALL:
            return self._at_line_begin(at) and not source.has(behind, END_PARAMETER)
        if source.text[behind] == CLOSE_CALL:
            return True
        followers = (FUNCTION,) if word == END_FUNCTION else (PARAMETER, END_FUNCTION, FUNCTION)
        return any(source.has(behind, follower) for follower in followers) or source.cut_short(
            behind, *followers
        )

    def _end_value(self, word: str, at: int) -> None:
        """Close the value before `word` at `at`; all but `</parameter>` is then read again."""
        end = self._line_begin(at) if word == PARAMETER else self._trim(at)
        self._close_value(end, at + len(word) if word == END_PARAMETER else at)

    def _close_value(self, end: int, behind: int) -> None:
        source = self._source
        self._put(self._arguments.close(spell(source.take(end))))
        source.pos = behind
        self._in_value = False

    def _pass_on(self, at: int) -> None:
        """Pass on what is settled of the value before `at`, and remember that no end begins before it."""
        source = self._source
        if self._arguments.streams:
            end = self._line_begin(at)
            if end > source.pos:
                self._begun = True
                self._put(self._arguments.grow(spell(source.take(end))))
        self._searched = at - source.pos

    def _trim(self, at: int) -> int:
        """`at` without a newline directly before it."""
        return at - 1 if at > self._source.pos and self._source.text[at - 1] == "\n" else at

    def _line_begin(self, at: int) -> int:
        """Where the newline stands that begins the line of `at`, if only blanks are between; else `at`.

        The beginning of the value begins a line as well.
        """
        source, before = self._source, at
        while before > source.pos and source.text[before - 1] in " \t":
            before -= 1
        if before > source.pos:
            return before - 1 if source.text[before - 1] == "\n" else at
        return at if self._begun else before

    def _at_line_begin(self, at: int) -> bool:
        begin = self._line_begin(at)
        return begin < at or (begin == self._source.pos and not self._begun)

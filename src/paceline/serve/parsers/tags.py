"""Finds the tags in what the engine emits and puts one character, a mark, in place of each.

`<think>`, `</think>`, `<tool_call>` and `</tool_call>` are single tokens of the models that we read. Only the
token is the tag: the same letters spelled by ordinary tokens are text. Where a tag is no token of the
tokenizer, or ids are not to be had, its letters are the tag, and what may be the beginning of one is held
back.

A mark is a lone surrogate. Decoded text never holds one, so a mark cannot be mistaken for text; what comes in
from elsewhere with surrogates in it gets U+FFFD in their place, which is what UTF-8 would make of them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.engine.detokenizer import Detokenizer, TokenBytes

OPEN_THINK, CLOSE_THINK, OPEN_CALL, CLOSE_CALL = "\ud800", "\ud801", "\ud802", "\ud803"
TAGS = {
    OPEN_THINK: "<think>",
    CLOSE_THINK: "</think>",
    OPEN_CALL: "<tool_call>",
    CLOSE_CALL: "</tool_call>",
}
"""What each mark stands for."""
TURN = "<|im_start|>"
"""Begins a turn in the chat format."""

_SPELLED = str.maketrans(TAGS)
_SURROGATES = re.compile("[\ud800-\udfff]")


def spell(marked: str) -> str:
    """Marked text as the model wrote it, tags spelled out."""
    return marked.translate(_SPELLED)


@dataclass(frozen=True, slots=True)
class TagTokens:
    """Which tags are tokens of one model, and how its tokens are written out."""

    marks: Mapping[int, str]
    """Token id to mark."""
    turn_id: int | None
    """The token that begins a turn."""
    table: TokenBytes

    @classmethod
    def of(cls, backend: Any, table: TokenBytes) -> TagTokens:
        """`backend` is the fast tokenizer (of the `tokenizers` library) that `table` was made from."""
        ids = {backend.token_to_id(text): mark for mark, text in TAGS.items()}
        ids.pop(None, None)
        return cls(ids, backend.token_to_id(TURN), table)


class SpelledTags:
    """Replaces tags that are spelled out in text which comes in pieces."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._mark = {TAGS[mark]: mark for mark in marks}
        self._pattern = re.compile("|".join(map(re.escape, self._mark)) or r"(?!)")
        self._held = ""

    def feed(self, text: str) -> str:
        """Marked text without a possible beginning of a tag at its end."""
        text = self._pattern.sub(lambda found: self._mark[found[0]], self._held + text)
        # A tag holds one "<", its first character: nothing before the last one can still become a tag.
        at = text.rfind("<")
        keep = at if at >= 0 and any(tag.startswith(text[at:]) for tag in self._mark) else len(text)
        self._held = text[keep:]
        return text[:keep]

    def release(self) -> str:
        """The held text: the output has ended."""
        held, self._held = self._held, ""
        return held


class TagReader:
    """Turns the increments of one choice into marked text.

    Ids and text are two views of the same output that do not come in step: text waits while a stop string or
    the rest of a character may follow, and ends before a stop string for good. So this decodes the ids once
    more to learn at which offset of the text each tag stands, and marks it when the text has come so far.
    """

    def __init__(self, tokens: TagTokens | None, *, skip_special_tokens: bool = True) -> None:
        """`tokens` is None if ids are not available. `skip_special_tokens` is the request's."""
        self._marks = {} if tokens is None else tokens.marks
        self._decoder = (
            None if tokens is None else Detokenizer(tokens.table, skip_special_tokens=skip_special_tokens)
        )
        self._spelled = SpelledTags(mark for mark in TAGS if mark not in self._marks.values())
        self._due: deque[tuple[int, int, str]] = deque()  # (first offset, offset behind, mark)
        self._decoded = 0  # characters that the ids so far stand for
        self._text = ""  # text that has come but not gone on: the first part of a tag
        self._offset = 0  # of the beginning of `_text`

    def feed(self, token_ids: Sequence[int], text: str) -> str:
        """Marked text that this increment settles."""
        if self._decoder is not None:
            for token_id in token_ids:
                self._locate(token_id, self._decoder)
        self._text += _SURROGATES.sub("\ufffd", text)
        return self._spelled.feed(self._settled())

    def finish(self) -> str:
        """The rest; a tag that a stop string has cut in two is text."""
        rest, self._text = self._text, ""
        self._due.clear()
        return self._spelled.feed(rest) + self._spelled.release()

    def _locate(self, token_id: int, decoder: Detokenizer) -> None:
        piece = decoder.push(token_id)
        self._decoded += len(piece)
        mark = self._marks.get(token_id)
        if mark is not None:
            # Before the tag there may be a U+FFFD for half a character. A special tag has no text at all.
            width = len(TAGS[mark]) if piece.endswith(TAGS[mark]) else 0
            self._due.append((self._decoded - width, self._decoded, mark))

    def _settled(self) -> str:
        out = []
        while self._due and self._due[0][1] <= self._offset + len(self._text):
            begin, end, mark = self._due.popleft()
            out += [self._pull(begin), mark]
            self._pull(end)
        out.append(self._pull(self._due[0][0] if self._due else None))
        return "".join(out)

    def _pull(self, offset: int | None) -> str:
        """Remove the text before `offset` (None: all) from what waits, and return it."""
        size = len(self._text) if offset is None else min(len(self._text), offset - self._offset)
        text, self._text = self._text[:size], self._text[size:]
        self._offset += size
        return text


def opens_reasoning(prompt: Sequence[int] | str, tokens: TagTokens | None = None) -> bool:
    """Whether a prompt ends inside a think block, so that the output begins with reasoning.

    Only the last turn counts, and in it only the last think tag: example calls and quoted tags in earlier
    turns say nothing about the output. Give ids if the tags are tokens, else the rendered text.
    """
    if isinstance(prompt, str):
        turn = prompt[prompt.rfind(TURN) + 1 :]
        return turn.rfind(TAGS[OPEN_THINK]) > turn.rfind(TAGS[CLOSE_THINK])
    assert tokens is not None
    for token_id in reversed(prompt):
        mark = tokens.marks.get(token_id)
        if mark in (OPEN_THINK, CLOSE_THINK):
            return mark == OPEN_THINK
        if token_id == tokens.turn_id:
            return False
    return False

"""The same rules as `qwen3`, read off the whole text at once: slow, short, and what the machine is held to.

Used by tests only. It shares with the machine the marks, the schema and the coercion, and nothing else: where
the machine asks whether it can know yet, this has the whole text before it and looks ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from paceline.serve.parsers.base import Message, ParserOptions, ToolCall
from paceline.serve.parsers.coerce import coerce, dumps
from paceline.serve.parsers.schema import ParameterKinds
from paceline.serve.parsers.tags import CLOSE_CALL, CLOSE_THINK, OPEN_CALL, OPEN_THINK, spell

_B = r"[ \t\r\n]*"
_MARKS = f"{OPEN_THINK}{CLOSE_THINK}{OPEN_CALL}{CLOSE_CALL}"
_PLAIN = re.compile(f"[^<{_MARKS}]+")
_FUNCTION = rf"<function=([^<>\s{_MARKS}]{{1,128}})>"
_PARAMETER = rf"<parameter=[ \t]*(?=[^\s>])([^<>\r\n{_MARKS}]{{1,128}})>"
_CUT_NAME = re.compile(rf"<parameter=[^<>\r\n{_MARKS}]{{0,128}}\Z|<function=[^<>\s{_MARKS}]{{0,128}}\Z")
_AFTER_PARAMETER = ("<parameter=", "</function>", "<function=")
_AFTER_FUNCTION = ("<function=",)


def parse_whole(marked: str, options: ParserOptions) -> Message:
    """The message that a whole output, tags marked, spells. Ids of calls are left empty."""
    reader = _Reader(marked, options)
    if options.reasoning and options.in_reasoning:
        reader.read_reasoning()
    while reader.at < len(marked) and not reader.over:
        reader.read_content()
    return Message(reader.reasoning, reader.content(), reader.calls)


def _cut(rest: str, *words: str) -> bool:
    """Whether the text ends inside one of `words`."""
    return rest != "" and any(word.startswith(rest) and word != rest for word in words)


@dataclass
class _Reader:
    text: str
    options: ParserOptions
    at: int = 0
    reasoning: str = ""
    sections: list[str] = field(default_factory=lambda: [""])  # of content, between tags and calls
    calls: list[ToolCall] = field(default_factory=list)
    late_close_think: bool = False
    late_close_call: bool = False
    over: bool = False

    def content(self) -> str:
        """The sections, each without the whitespace that belongs to the markup around it."""
        first, *others = self.sections
        kept = [first] if first.strip() or not others else []
        kept += [re.sub(r"\A\s*\n", "", section) for section in others if section.strip()]
        # Whitespace before markup stays only as the gap to a later section.
        ends_in_markup = bool(others) and not others[-1].strip()
        text = "".join(kept)
        return text.rstrip(" \t\r\n") if ends_in_markup else text

    def match(self, pattern: str) -> re.Match[str] | None:
        return re.compile(pattern).match(self.text, self.at)

    def read_reasoning(self) -> None:
        """One think block; `at` stands behind its opening tag."""
        block, self.sections[-1:] = "", [self.sections[-1], ""]
        offered = {tool.name for tool in self.options.tools}
        while self.at < len(self.text):
            char = self.text[self.at]
            call = self.match(OPEN_CALL + _B + _FUNCTION)
            if char == CLOSE_THINK or (call and call[1] in offered):
                self.reasoning += block.strip("\n")
                self.late_close_think = char != CLOSE_THINK
                self.at += char == CLOSE_THINK
                return
            self.at += 1
            if char != OPEN_THINK or block.strip(" \t\r\n"):
                block += spell(char)
        self.reasoning += block.lstrip("\n")

    def read_content(self) -> None:
        """One piece of content, or one call."""
        char, section = self.text[self.at], self.sections[-1]
        wrapped, bare = self.match(OPEN_CALL + _B + _FUNCTION), self.match(_FUNCTION)
        offered = {tool.name for tool in self.options.tools}
        line_begins = section.strip(" \t\r\n") == "" or (
            re.search(r"\n\s*\Z", section) and not re.search(r"(```\w*|<tool_call>)\s*\Z", section)
        )
        in_block = self.late_close_call and not section.strip(" \t\r\n")
        nothing_yet = not "".join(self.sections).strip(" \t\r\n") and not self.calls
        if offered and wrapped:
            self.read_call(wrapped)
        elif offered and bare and line_begins and (in_block or bare[1] in offered):
            self.read_call(bare)
        elif char == OPEN_THINK and self.options.reasoning and nothing_yet:
            self.at += 1
            self.read_reasoning()
        elif char == CLOSE_THINK and self.late_close_think:
            self.late_close_think, self.at = False, self.at + 1
            self.sections.append("")
        elif char == CLOSE_CALL and self.late_close_call:
            self.late_close_call, self.at = False, self.at + 1
            self.sections.append("")
        else:
            self.sections[-1] += spell(char)
            self.at += 1

    def read_call(self, opening: re.Match[str]) -> None:
        self.at, self.late_close_call = opening.end(), True
        self.sections.append("")
        schema = next((t.parameters for t in self.options.tools if t.name == opening[1]), {})
        arguments: dict[str, Any] = {}
        complete = self.read_arguments(ParameterKinds(schema), arguments)
        self.calls.append(ToolCall("", opening[1], dumps(arguments), complete))
        self.sections.append("")
        self.over = not self.options.parallel_tool_calls

    def read_arguments(self, kinds: ParameterKinds, arguments: dict[str, Any]) -> bool:
        """Fill in a call's arguments; whether the call has an end."""
        while self.at < len(self.text):
            rest = self.text[self.at :]
            if rest.startswith("</function>"):
                self.at += len("</function>")
                return True
            if rest[0] in (OPEN_CALL, CLOSE_CALL) or self.match(_FUNCTION):
                return True
            if parameter := self.match(_PARAMETER):
                self.sections.append("")
                self.at = parameter.end()
                key = parameter[1].strip()
                value = self.read_value(kinds, {*arguments, key})
                arguments.setdefault(key, coerce(value, kinds[key]))
            elif _CUT_NAME.match(rest) or _cut(rest, "</function>", "<parameter=", "<function="):
                self.at = len(self.text)
            else:
                self.sections[-1] += spell(rest[0])
                self.at += 1
        return False

    def read_value(self, kinds: ParameterKinds, taken: set[str]) -> str:
        """The text of a value; `at` then stands behind it and its closing tag. `taken`: the keys so far."""
        self.at += self.text[self.at : self.at + 1] == "\n"
        begin = self.at
        while self.at < len(self.text):
            before, rest = self.text[begin : self.at], self.text[self.at :]
            line = re.search(r"(\n|\A)[ \t]*\Z", before)
            if line and (key := self.match(_PARAMETER)):
                name = key[1].strip()
                if kinds.knows(name) and name not in taken:
                    return spell(before[: line.start()])
            if ends_value(rest, line is not None):
                self.at += len("</parameter>") if rest.startswith("</parameter>") else 0
                return spell(before.removesuffix("\n"))
            if line and rest.startswith("</") and _cut(rest, "</parameter>", "</function>"):
                self.at = len(self.text)
                return spell(before[: line.start()])
            self.at += 1
        return spell(self.text[begin:].removesuffix("\n"))


def ends_value(rest: str, line_begins: bool) -> bool:
    """Whether a value ends before `rest`, as far as that does not depend on the next parameter's name."""
    word = re.match(f"</parameter>|</function>|{CLOSE_CALL}", rest)
    if word is None:
        return False
    behind = rest[word.end() :].lstrip(" \t\r\n")
    if behind[:1] in ("", OPEN_CALL):
        return True
    if word[0] == CLOSE_CALL:
        return line_begins and not behind.startswith("</parameter>")
    followers = _AFTER_PARAMETER if word[0] == "</parameter>" else _AFTER_FUNCTION
    return behind[0] == CLOSE_CALL or behind.startswith(followers) or _cut(behind, *followers)

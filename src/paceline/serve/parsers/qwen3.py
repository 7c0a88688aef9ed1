"""Reads what Qwen3.5 and Qwen3.6 write: a think block, content, and tool calls in their XML-like form.

    <think>\\n reasoning \\n</think>\\n\\n content
    <tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>

One machine for all of it, because what a tag means depends on where it stands:

* In reasoning, `</think>` ends it. A call of an offered tool ends it too (models forget the tag), and a
  `</think>` that then follows is absorbed. Any other `<tool_call>` is something the model thinks about: text.
  So is a `<think>`, unless it comes first. If the output ends here, all of it was reasoning.
* In content, `<tool_call>` begins a call if `<function=NAME>` follows, whatever the name: a client can answer
  that there is no such tool. Else it is prose. A bare `<function=NAME>` begins a call at the beginning of a
  line if the tool is on offer and no code fence or spelled `<tool_call>` is right before it. `<think>` opens
  reasoning before all other content only; stray closing tags, and all tool tags while no tools are on offer,
  are text.
* In a call, text that belongs to no parameter is content. `</function>`, `</tool_call>` and `<tool_call>` end
  the call; a call that the output's end has cut short is closed, so that its arguments are always JSON.
* A value ends at `</parameter>` if a parameter, the end of the function or call, or the end of the output is
  next; else that is text, such as XML. A forgotten `</parameter>` is seen at `</function>` before the call's
  end, at `</tool_call>` alone on its line or before the next call or the end, and at a `<parameter=KEY>` that
  begins a line if the schema names the key and it has not come yet. A value that quotes the end of a whole
  call ends there. A value loses one newline at either end.
* Markup that the end of the output has cut in two is dropped inside a call, and is text elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from paceline.serve.parsers.base import (
    Event,
    EventList,
    ParserOptions,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from paceline.serve.parsers.call import CallReader
from paceline.serve.parsers.schema import ParameterKinds
from paceline.serve.parsers.source import FUNCTION, Named, NeedMore, Source
from paceline.serve.parsers.tags import CLOSE_CALL, CLOSE_THINK, OPEN_CALL, OPEN_THINK, TagReader, TagTokens
from paceline.serve.parsers.writers import ContentWriter, ReasoningWriter


def new_call_id() -> str:
    """An id such as other servers give, unique for all practical purposes."""
    return f"call_{secrets.token_hex(12)}"


class Qwen3Parser:
    """Reads one choice; an `OutputParser`."""

    def __init__(
        self,
        options: ParserOptions,
        tokens: TagTokens | None = None,
        *,
        skip_special_tokens: bool = True,
        make_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`tokens` is None if ids are not available; then tags are found in the text.

        `skip_special_tokens` must be the request's own, so that ids and text tell the same.
        """
        self._options = options
        self._tools = {tool.name: tool for tool in options.tools}
        self._make_id = make_id
        self._tags = TagReader(tokens, skip_special_tokens=skip_special_tokens)
        self._source = Source()
        self._events = EventList()
        self._reasoning = ReasoningWriter(self._events.put)
        self._content = ContentWriter(self._events.put)
        self._call: CallReader | None = None
        self._call_count = 0
        self._arguments = ""
        self._in_reasoning = options.reasoning and options.in_reasoning
        self._late_close_think = False  # reasoning ended without its closing tag, which may still come
        self._late_close_call = False  # likewise a call's
        self._finished = False

    @property
    def done(self) -> bool:
        """Whether nothing that follows can matter: the one call that was allowed has ended."""
        calls_over = self._call_count > 0 and self._call is None
        return self._finished or (calls_over and not self._options.parallel_tool_calls)

    def feed(self, token_ids: Sequence[int], text: str) -> list[Event]:
        """Take in one increment; see `OutputParser`."""
        if not self.done:
            self._source.feed(self._tags.feed(token_ids, text))
            self._read()
        return self._events.take()

    def finish(self) -> list[Event]:
        """The output has ended; see `OutputParser`."""
        if not self.done:
            self._source.feed(self._tags.finish())
            self._source.final = True
            self._read()
        if not self.done:
            if self._call is not None:
                self._call.finish()
                self._end_call(complete=False)
            self._reasoning.finish()
            self._content.finish()
        self._finished = True
        return self._events.take()

    def _read(self) -> None:
        try:
            while not self._source.exhausted and not self.done:
                if self._call is not None:
                    self._read_call(self._call)
                elif self._in_reasoning:
                    self._read_reasoning()
                else:
                    self._read_content()
        except NeedMore:
            return

    def _read_reasoning(self) -> None:
        source = self._source
        if plain := source.take_plain(markup=False):
            self._reasoning.write(plain)
            return
        mark = source.text[source.pos]
        if mark == CLOSE_THINK:
            source.pos += 1
            self._end_reasoning()
        elif mark == OPEN_CALL and (opening := self._offered(source.pos + 1)):
            self._end_reasoning()
            self._late_close_think = True
            self._begin_call(opening)
        elif mark == OPEN_THINK and self._reasoning.blank:
            source.pos += 1
        else:
            self._reasoning.write(source.take(source.pos + 1))

    def _end_reasoning(self) -> None:
        self._reasoning.close()
        self._content.divide()
        self._in_reasoning = False

    def _read_content(self) -> None:
        source = self._source
        if plain := source.take_plain(markup=bool(self._tools)):
            self._content.write(plain)
        elif not self._read_content_markup(source.text[source.pos]):
            self._content.write(source.take(source.pos + 1))

    def _read_content_markup(self, char: str) -> bool:
        """Act on a mark or "<" at the position; False if it is text after all."""
        source = self._source
        if char == "<":
            return self._read_bare_function()
        if char == OPEN_CALL:
            opening = self._opening(source.pos + 1) if self._tools else None
            if opening is not None:
                self._begin_call(opening)
            return opening is not None
        if char == OPEN_THINK and self._options.reasoning and self._content.blank and not self._call_count:
            self._in_reasoning = True
        elif char == CLOSE_THINK and self._late_close_think:
            self._late_close_think = False
        elif char == CLOSE_CALL and self._late_close_call:
            self._late_close_call = False
        else:
            return False
        source.pos += 1
        self._content.divide()
        return True

    def _read_bare_function(self) -> bool:
        if not self._content.invites_markup:
            return False
        opening = self._source.named(self._source.pos, FUNCTION)
        if opening is None:
            return False
        next_in_block = self._late_close_call and self._content.fresh
        if not (next_in_block or opening.name in self._tools):
            return False
        self._begin_call(opening)
        return True

    def _opening(self, at: int) -> Named | None:
        return self._source.named(self._source.past_blanks(at), FUNCTION)

    def _offered(self, at: int) -> Named | None:
        opening = self._opening(at) if self._tools else None
        return opening if opening is not None and opening.name in self._tools else None

    def _begin_call(self, opening: Named) -> None:
        self._source.pos = opening.end
        self._content.divide()
        self._late_close_call = True
        self._arguments = ""
        self._events.put(ToolCallStart(self._call_count, self._make_id(), opening.name))
        self._call_count += 1
        tool = self._tools.get(opening.name)
        kinds = ParameterKinds({} if tool is None else tool.parameters)
        self._call = CallReader(self._source, kinds, self._put_arguments, self._content)

    def _read_call(self, call: CallReader) -> None:
        if not call.read():
            self._end_call(complete=True)

    def _put_arguments(self, text: str) -> None:
        if text:
            self._arguments += text
            self._events.put(ToolArgumentsDelta(self._call_count - 1, text))

    def _end_call(self, *, complete: bool) -> None:
        assert self._call is not None
        self._put_arguments(self._call.end())
        self._events.put(ToolCallEnd(self._call_count - 1, self._arguments, complete))
        self._call = None
        self._content.divide()

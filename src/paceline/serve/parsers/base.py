"""What every output parser is given and gives back; nothing here knows of HTTP.

A parser reads one choice. It is fed what the engine emits, as it comes, and answers with events. The events
of a choice, put together by `assemble`, are the same however the output was cut into increments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. Indexes count from 0 without gaps, and at most one call is open at a time."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """More of a call's arguments: a piece of JSON text that is final, never taken back or changed."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over and its arguments are a whole JSON object."""

    index: int
    arguments: str
    """All argument deltas of the call, put together."""
    complete: bool
    """False if the output ended inside the call: the last value may be cut short."""


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta | ToolCallEnd


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a request offers."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments object; empty if the request gave none."""


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """How to read one choice."""

    reasoning: bool = True
    """Whether think tags mean something. If not, they are text."""
    in_reasoning: bool = False
    """Whether the prompt ends inside a think block (see `opens_reasoning`)."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools on offer. Without any (or under tool_choice "none") tool tags are text."""
    parallel_tool_calls: bool = True
    """If not, the parser is `done` after the first call and what follows is ignored."""


class OutputParser(Protocol):
    """Reads one choice."""

    def feed(self, token_ids: Sequence[int], text: str) -> list[Event]:
        """Take in one increment: new token ids and newly settled text, either of which may be empty.

        Text may lag behind its ids (a stop string is being awaited), never run ahead of them.
        """

    def finish(self) -> list[Event]:
        """The output has ended: what was held back, and the end of an open call. Later calls give nothing."""

    @property
    def done(self) -> bool:
        """Whether nothing that follows can matter: generation may be stopped."""


@dataclass(slots=True)
class ToolCall:
    """A call put together from its events."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Message:
    """One choice put together from its events."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


def assemble(events: Iterable[Event]) -> Message:
    """The message that a choice's events spell; for answers that are not streamed."""
    message = Message()
    for event in events:
        match event:
            case ReasoningDelta(text):
                message.reasoning += text
            case ContentDelta(text):
                message.content += text
            case ToolCallStart(index, call_id, name):
                assert index == len(message.tool_calls)
                message.tool_calls.append(ToolCall(call_id, name))
            case ToolArgumentsDelta(index, text):
                message.tool_calls[index].arguments += text
            case ToolCallEnd(index, arguments, complete):
                assert message.tool_calls[index].arguments == arguments
                message.tool_calls[index].complete = complete
    return message


class EventList:
    """Collects the events of one increment; neighbours of one kind become one."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def take(self) -> list[Event]:
        """All events since the last time."""
        events, self._events = self._events, []
        return events

    def put(self, event: Event) -> None:
        """Append an event, or lengthen the last one."""
        last = self._events[-1] if self._events else None
        match last, event:
            case ReasoningDelta(a), ReasoningDelta(b):
                self._events[-1] = ReasoningDelta(a + b)
            case ContentDelta(a), ContentDelta(b):
                self._events[-1] = ContentDelta(a + b)
            case ToolArgumentsDelta(i, a), ToolArgumentsDelta(j, b) if i == j:
                self._events[-1] = ToolArgumentsDelta(i, a + b)
            case _:
                self._events.append(event)

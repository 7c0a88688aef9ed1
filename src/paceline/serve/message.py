"""One chat choice: what the parser finds in its text, as messages and deltas of OpenAI's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.serve.parsers.base import (
    ContentDelta,
    Event,
    OutputParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
    assemble,
)

if TYPE_CHECKING:
    from paceline.engine.results import StreamEvent


class ChoiceReader:
    """Reads one choice as it comes."""

    def __init__(self, index: int, parser: OutputParser, with_reasoning: bool):
        self.index, self._parser, self._with_reasoning = index, parser, with_reasoning
        self._events: list[Event] = []
        self.finish_reason: str | None = None
        """Why the choice has ended; None while it goes on."""
        self.reasoning_tokens = 0
        """Tokens of increments that held nothing but reasoning: exact but for those that hold both."""
        self._stop_reason: str | int | None = None

    @property
    def over(self) -> bool:
        """Whether the choice has ended, or nothing that follows can matter."""
        return self.finish_reason is not None

    def take(self, event: StreamEvent) -> dict[str, Any]:
        """The delta that an event gives; empty where it gives nothing to read yet."""
        if self.over:
            return {}
        found = self._parser.feed(event.token_ids, event.text)
        if event.finish_reason or self._parser.done:
            found = [*found, *self._parser.finish()]
            self._stop_reason = event.stop_reason
            self.finish_reason = event.finish_reason or "stop"
        self._events += found
        if found and all(isinstance(e, ReasoningDelta) for e in found):
            self.reasoning_tokens += len(event.token_ids)
        if self.finish_reason == "stop" and any(isinstance(e, ToolCallStart) for e in self._events):
            self.finish_reason = "tool_calls"
        return self._delta(found)

    def chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        """A choice of a chunk, while it goes on."""
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def end(self) -> dict[str, Any]:
        """The choice of its last chunk."""
        return {**self.chunk({}), "finish_reason": self.finish_reason, "stop_reason": self._stop_reason}

    def whole(self) -> dict[str, Any]:
        """The choice of an answer in one piece."""
        found = assemble(self._events)
        reasoning = found.reasoning if self._with_reasoning else ""
        message: dict[str, Any] = {"role": "assistant", "content": found.content, "refusal": None}
        if not found.content and (found.tool_calls or found.reasoning):
            message["content"] = None
        if reasoning:
            message["reasoning"] = message["reasoning_content"] = reasoning
        if found.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in found.tool_calls
            ]
        return {
            "index": self.index,
            "message": message,
            "finish_reason": self.finish_reason,
            "stop_reason": self._stop_reason,
        }

    def _delta(self, events: list[Event]) -> dict[str, Any]:
        """Everything that one increment gave, as one delta."""
        content = "".join(e.text for e in events if isinstance(e, ContentDelta))
        reasoning = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
        delta: dict[str, Any] = {}
        if reasoning and self._with_reasoning:
            delta["reasoning"] = delta["reasoning_content"] = reasoning
        if content:
            delta["content"] = content
        if calls := _call_deltas(events):
            delta["tool_calls"] = calls
        return delta


def _call_deltas(events: list[Event]) -> list[dict[str, Any]]:
    """One entry for each call that got something; id, type and name come with its first."""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            calls[event.index] = {
                "index": event.index, "id": event.id, "type": "function", "function": function,
            }  # fmt: skip
        elif isinstance(event, ToolArgumentsDelta):
            call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    return list(calls.values())

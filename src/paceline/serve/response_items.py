"""The output items of a response, as they are written, and the events that tell of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]


class Items:
    """Puts deltas of a chat choice into items; at most one item is open at a time."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._call: int | None = None

    def take(self, delta: dict[str, Any]) -> Iterator[Event]:
        """Events of one delta, as `ChoiceReader.take` gives it."""
        if text := delta.get("reasoning"):
            yield from self._text("reasoning", text)
        if text := delta.get("content"):
            yield from self._text("message", text)
        for call in delta.get("tool_calls", ()):
            yield from self._calls(call)

    def finish(self, status: str) -> Iterator[Event]:
        """Close the open item; `status` is its own: completed or incomplete."""
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = status
        if item["type"] == "function_call":
            name, text = "function_call_arguments", {"arguments": item["arguments"], "name": item["name"]}
            yield self._about(f"response.{name}.done", item, text)
        else:
            part = item["content"][0]
            kind = part["type"]
            what: dict[str, Any] = {"content_index": 0, "text": part["text"]}
            if kind == "output_text":
                what["logprobs"] = []
            yield self._about(f"response.{kind}.done", item, what)
            if kind == "output_text":
                yield self._about("response.content_part.done", item, {"content_index": 0, "part": part})
        yield {"type": "response.output_item.done", "output_index": len(self.done), "item": item}
        self.done.append(item)

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._begin(_reasoning() if kind == "reasoning" else _message())
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        what: dict[str, Any] = {"content_index": 0, "delta": text}
        if kind == "message":
            what["logprobs"] = []
        yield self._about(f"response.{part['type']}.delta", self._open, what)

    def _calls(self, call: dict[str, Any]) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            yield from self._begin(_function_call(call["id"], function["name"]))
        assert self._open is not None and self._open["type"] == "function_call"
        if function["arguments"]:
            self._open["arguments"] += function["arguments"]
            what = {"delta": function["arguments"]}
            yield self._about("response.function_call_arguments.delta", self._open, what)

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        """Close the open item and open another, which is shown empty first."""
        yield from self.finish("completed")
        self._open = item
        shown = {**item, "content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.done), "item": shown}
        if item["type"] == "message":
            part = dict(item["content"][0])
            yield self._about("response.content_part.added", item, {"content_index": 0, "part": part})

    def _about(self, kind: str, item: dict[str, Any], what: dict[str, Any]) -> Event:
        return {"type": kind, "item_id": item["id"], "output_index": len(self.done), **what}


def _message() -> dict[str, Any]:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {**_item("msg", "message"), "role": "assistant", "content": [part]}


def _reasoning() -> dict[str, Any]:
    return {**_item("rs", "reasoning"), "summary": [], "content": [{"type": "reasoning_text", "text": ""}]}


def _function_call(call_id: str, name: str) -> dict[str, Any]:
    return {**_item("fc", "function_call"), "call_id": call_id, "name": name, "arguments": ""}


def _item(prefix: str, kind: str) -> dict[str, Any]:
    return {"id": f"{prefix}_{secrets.token_hex(16)}", "type": kind, "status": "in_progress"}

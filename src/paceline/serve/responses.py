"""`POST /v1/responses`: text, reasoning and function calls, whole or as typed events. Nothing is stored."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from paceline.serve.chat_completions import ChatAnswer
from paceline.serve.errors import ApiError
from paceline.serve.response_input import as_chat, rename
from paceline.serve.response_items import Items
from paceline.serve.stream import sse

if TYPE_CHECKING:
    from paceline.engine.request import Request
    from paceline.serve.protocol import ResponsesRequest
    from paceline.serve.service import Answer, Service


class ResponsesAnswer:
    """One response in the making."""

    def __init__(self, service: Service, body: ResponsesRequest, model: str):
        try:
            self._chat = ChatAnswer(service, as_chat(body), model)
        except ApiError as error:
            raise rename(error, body) from None
        self._body, self._model = body, model
        self._id, self._created = f"resp_{secrets.token_hex(16)}", int(time.time())
        self._items = Items()

    def requests(self) -> list[Request]:
        """The engine's request."""
        try:
            return self._chat.requests()
        except ApiError as error:
            raise rename(error, self._body) from None

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """The response in one piece."""
        async for _ in self._events(answer):
            pass
        return self._response(answer)

    async def chunks(self, answer: Answer) -> AsyncIterator[bytes]:
        """The response as typed server-sent events."""
        number = 0
        async for event in self._told(answer):
            event["sequence_number"] = number
            number += 1
            yield f"event: {event['type']}\n".encode() + sse(event)

    async def _told(self, answer: Answer) -> AsyncIterator[dict[str, Any]]:
        """All events, the response's own beginning and end included."""
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._shell("in_progress")}
        try:
            async for event in self._events(answer):
                yield event
        except ApiError as error:
            failed = {**self._shell("failed"), "error": {"code": "server_error", "message": str(error)}}
            yield {"type": "response.failed", "response": failed}
            return
        response = self._response(answer)
        yield {"type": f"response.{response['status']}", "response": response}

    async def _events(self, answer: Answer) -> AsyncIterator[dict[str, Any]]:
        """Events of the output items."""
        (choice,) = self._chat.choices
        async for _, event in answer.events():
            for told in self._items.take(choice.take(event)):
                yield told
            if choice.over:
                break
        for told in self._items.finish(self._status):
            yield told

    @property
    def _status(self) -> str:
        (choice,) = self._chat.choices
        return "incomplete" if choice.finish_reason == "length" else "completed"

    def _response(self, answer: Answer) -> dict[str, Any]:
        usage = answer.tally.usage()
        return {
            **self._shell(self._status),
            "output": self._items.done,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._chat.choices[0].reasoning_tokens},
                "total_tokens": usage["total_tokens"],
            },
            "paceline": answer.tally.paceline(),
        }

    def _shell(self, status: str) -> dict[str, Any]:
        """A response without output."""
        body, params = self._body, self._chat.params
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": params.temperature,
            "text": {"format": {"type": body.text.format.type if body.text and body.text.format else "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": {},
        }

"""`POST /v1/chat/completions`: messages in; content, reasoning and tool calls out."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from paceline.serve.errors import ApiError
from paceline.serve.message import ChoiceReader
from paceline.serve.params import engine_request, sampling_params
from paceline.serve.stream import DONE, sse
from paceline.serve.structure import structure_of
from paceline.serve.trace import Tracer

if TYPE_CHECKING:
    from paceline.engine.request import Request
    from paceline.engine.results import StreamEvent
    from paceline.serve.protocol import ChatRequest
    from paceline.serve.service import Answer, Service


class ChatAnswer:
    """One answer in the making."""

    def __init__(self, service: Service, body: ChatRequest, model: str):
        self._service, self._body = service, body
        self._id = f"chatcmpl-{secrets.token_hex(16)}"
        self.params = sampling_params(body, service.defaults)
        prompt, self._prompt_ids = service.format.encode(body)
        parser = service.readers.parser(body, prompt, skip_special_tokens=self.params.skip_special_tokens)
        self._structure = structure_of(body, self.params, prompt, service.readers)
        reasoning = body.include_reasoning is not False
        self.choices = [ChoiceReader(i, parser(), reasoning) for i in range(self.params.n)]
        self._head = {"id": self._id, "created": int(time.time()), "model": model}
        self._tracer = Tracer(service.table) if body.paceline and body.paceline.trace else None

    def requests(self) -> list[Request]:
        """The engine's request."""
        service = self._service
        return [
            engine_request(
                self._id, self._prompt_ids, self.params, self._body, service.info,
                seed=service.seed, prompt_param="messages", structure=self._structure,
            )
        ]  # fmt: skip

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer in one piece."""
        logprobs: dict[int, list[Any]] = {}
        async for _, event in answer.events():
            self.choices[event.index].take(event)
            if event.logprobs is not None:
                logprobs.setdefault(event.index, []).extend(event.logprobs)
            if self._over:
                break
        choices = [choice.whole() for choice in self.choices]
        for choice in choices:
            entries = logprobs.get(choice["index"])
            choice["logprobs"] = None if entries is None else self._service.logprobs.chat(entries)
        head = {**self._head, "object": "chat.completion"}
        return {
            **head,
            "choices": choices,
            "usage": answer.tally.usage(),
            "paceline": answer.tally.paceline(),
        }

    async def chunks(self, answer: Answer) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        options = self._body.stream_options
        with_usage = bool(options and options.include_usage)
        head = {**self._head, "object": "chat.completion.chunk"}
        empty = {"usage": None} if with_usage else {}
        try:
            for choice in self.choices:
                delta = {"role": "assistant", "content": ""}
                yield sse({**head, "choices": [choice.chunk(delta)], **empty})
            async for _, event in answer.events():
                for piece, extra in self._pieces(event):
                    yield sse({**head, "choices": [piece], **empty, **extra})
                if self._over:
                    break
            if with_usage:
                tally = answer.tally
                last = {"choices": [], "usage": tally.usage(), "paceline": tally.paceline()}
                yield sse({**head, **last})
        except ApiError as error:
            yield sse(error.body())
        yield DONE

    @property
    def _over(self) -> bool:
        """Whether nothing that follows can matter."""
        return all(choice.over for choice in self.choices)

    def _pieces(self, event: StreamEvent) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Choices of chunks that an event gives, each with what else its chunk says."""
        choice = self.choices[event.index]
        was_over = choice.over
        delta = choice.take(event)
        pieces = []
        extra = {"paceline": self._tracer.trace(event)} if self._tracer else {}
        if delta or event.logprobs or (extra and event.token_ids):
            piece = choice.chunk(delta)
            if event.logprobs is not None:
                piece["logprobs"] = self._service.logprobs.chat(event.logprobs)
            pieces.append((piece, extra))
        if choice.over and not was_over:
            pieces.append((choice.end(), {}))
        return pieces

"""`POST /v1/completions`: plain text in, plain text out."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from paceline.errors import RequestError
from paceline.serve.errors import ApiError
from paceline.serve.params import engine_request, sampling_params
from paceline.serve.stream import DONE, sse
from paceline.serve.trace import Tracer

if TYPE_CHECKING:
    from paceline.engine.request import Request
    from paceline.engine.results import StreamEvent
    from paceline.serve.protocol import CompletionRequest
    from paceline.serve.service import Answer, Service

MAX_PROMPTS = 256


class CompletionAnswer:
    """One answer in the making; several prompts give several choices each."""

    def __init__(self, service: Service, body: CompletionRequest, model: str):
        self._service, self._body = service, body
        self._id = f"cmpl-{secrets.token_hex(16)}"
        self._params = sampling_params(body, service.defaults)
        self._head = {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._tracer = Tracer(service.table) if body.paceline and body.paceline.trace else None
        self._offsets: dict[int, int] = {}

    def requests(self) -> list[Request]:
        """One request a prompt."""
        service, body = self._service, self._body
        return [
            engine_request(
                f"{self._id}-{i}", ids, self._params, body, service.info,
                seed=service.seed, prompt_param="prompt",
            )
            for i, ids in enumerate(self._prompts())
        ]  # fmt: skip

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer in one piece."""
        choices: dict[int, dict[str, Any]] = {}
        async for prompt, event in answer.events():
            piece = self._choice(prompt, event)
            self._merge(choices.setdefault(piece["index"], {**piece, "text": "", "logprobs": None}), piece)
        tally = answer.tally
        ordered = [choices[index] for index in sorted(choices)]
        return {**self._head, "choices": ordered, "usage": tally.usage(), "paceline": tally.paceline()}

    async def chunks(self, answer: Answer) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        options = self._body.stream_options
        with_usage = bool(options and options.include_usage)
        empty = {"usage": None} if with_usage else {}
        try:
            async for prompt, event in answer.events():
                choice = self._choice(prompt, event)
                if choice["text"] or choice["finish_reason"] or choice["logprobs"] or self._tracer:
                    extra = {"paceline": self._tracer.trace(event)} if self._tracer else {}
                    yield sse({**self._head, "choices": [choice], **empty, **extra})
            if with_usage:
                tally = answer.tally
                last = {"choices": [], "usage": tally.usage(), "paceline": tally.paceline()}
                yield sse({**self._head, **last})
        except ApiError as error:
            yield sse(error.body())
        yield DONE

    def _choice(self, prompt: int, event: StreamEvent) -> dict[str, Any]:
        index = prompt * self._params.n + event.index
        logprobs = None
        if event.logprobs is not None:
            writer, offset = self._service.logprobs, self._offsets.get(index, 0)
            logprobs = writer.completion(event.logprobs, offset)
            self._offsets[index] = offset + writer.length(event.logprobs)
        return {
            "index": index,
            "text": event.text,
            "logprobs": logprobs,
            "finish_reason": event.finish_reason,
            "stop_reason": event.stop_reason,
        }

    @staticmethod
    def _merge(whole: dict[str, Any], piece: dict[str, Any]) -> None:
        """Add a piece to a choice."""
        whole["text"] += piece["text"]
        for name in ("finish_reason", "stop_reason"):
            whole[name] = piece[name]
        if piece["logprobs"] is not None:
            if whole["logprobs"] is None:
                whole["logprobs"] = {name: [] for name in piece["logprobs"]}
            for name, values in piece["logprobs"].items():
                whole["logprobs"][name] += values

    def _prompts(self) -> list[list[int]]:
        """Token ids of every prompt."""
        prompt: Any = self._body.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            prompt = [prompt]
        if not 0 < len(prompt) <= MAX_PROMPTS:
            raise ApiError(f"give 1 to {MAX_PROMPTS} prompts, not {len(prompt)}", param="prompt")
        return [self._encode(one) if isinstance(one, str) else list(one) for one in prompt]

    def _encode(self, text: str) -> list[int]:
        tokenizer = self._service.tokenizer
        encode = tokenizer.encode_bare if self._body.add_special_tokens is False else tokenizer.encode
        try:
            return encode(text)
        except RequestError as error:
            raise ApiError(str(error), param="prompt") from None

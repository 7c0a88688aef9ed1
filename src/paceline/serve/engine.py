"""The engine as the event loop sees it: open a request, iterate over its news, close it.

Everything here runs on the event loop's thread; the engine's own thread only hands messages over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from paceline.engine.client import EngineProcess
from paceline.engine.messages import (
    Abort,
    Accepted,
    Add,
    Ended,
    EngineInfo,
    Figures,
    ForgetPrefixes,
    Message,
    News,
    Ping,
    Ready,
    Refused,
)
from paceline.errors import PacelineError, RequestError
from paceline.serve.errors import ApiError, as_api_error, too_busy

if TYPE_CHECKING:
    from paceline.config import EngineConfig
    from paceline.config.server import ServerConfig
    from paceline.engine.request import Request
    from paceline.engine.results import StreamEvent

logger = logging.getLogger("paceline.serve")

Listener = Callable[[News], None]


class Generation:
    """A request that the engine has taken in. Iterate over it; close it, done or not."""

    def __init__(self, client: EngineClient, request: Request):
        self._client = client
        self.request = request
        self.news: asyncio.Queue[StreamEvent | PacelineError] = asyncio.Queue()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done = False

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        while not self.done:
            event = await self.news.get()
            if isinstance(event, PacelineError):
                raise ApiError(str(event), 500, code="engine_failed")
            self.done = event.output is not None or event.error is not None
            if event.error is not None:
                refused = isinstance(event.error, RequestError)
                raise (
                    as_api_error(event.error)
                    if refused
                    else ApiError(str(event.error), 500, code="capacity_exceeded")
                )
            yield event

    def close(self) -> None:
        """Abort what is unfinished; the engine stops within a step."""
        self._client.forget(self)


class EngineClient:
    """Starts the engine, keeps the open requests, and knows whether it is well."""

    def __init__(self, config: EngineConfig, server: ServerConfig):
        self._config, self._server = config, server
        self._open: dict[str, Generation] = {}
        self._process: EngineProcess | None = None
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._heard = time.monotonic()
        self.info: EngineInfo | None = None
        self.figures: Figures | None = None
        self.failure: PacelineError | None = None
        self.listeners: list[Listener] = []
        """Called with every piece of news, for metrics."""
        self.on_end: Callable[[PacelineError], None] = lambda error: None
        """Called when a running engine has died."""

    async def start(self) -> EngineInfo:
        """Start the engine's process; returns when it has written its first token, or raises its error."""
        loop = asyncio.get_running_loop()
        self._ready, self.failure = loop.create_future(), None

        def hand_over(message: Message) -> None:
            loop.call_soon_threadsafe(self._hear, process, message)

        process = self._process = EngineProcess(self._config, hand_over)
        process.start()
        return await self._ready

    async def stop(self) -> None:
        """End the engine's process."""
        process, self._process = self._process, None
        if process:
            await asyncio.to_thread(process.close)

    async def watch(self) -> None:
        """Ask the engine for a sign of life, for ever; one that gives none for twice the watchdog's time is
        killed, so that a hang ends as a death does."""
        while True:
            await asyncio.sleep(min(5.0, self._server.watchdog_s / 4))
            if self._process and self.info:
                if time.monotonic() - self._heard > 2 * self._server.watchdog_s:
                    logger.error("the engine hangs: it is killed")
                    self._process.kill()
                self._process.send(Ping())

    @property
    def pid(self) -> int | None:
        """The engine's process."""
        return self._process.pid if self._process else None

    @property
    def open_choices(self) -> int:
        """Choices that are running or in line."""
        return sum(generation.request.params.n for generation in self._open.values())

    def illness(self) -> str | None:
        """Why the engine cannot generate now; None when it can."""
        if self.failure is not None:
            return str(self.failure)
        if self.info is None:
            return "the engine is loading"
        silent = time.monotonic() - self._heard
        if silent > self._server.watchdog_s:
            return f"the engine has been silent for {silent:.0f} s"
        return None

    async def open(self, request: Request) -> Generation:
        """Put a request in line. Raises `ApiError` where it can never run, or not now."""
        if (illness := self.illness()) is not None:
            raise ApiError(illness, 503, code="engine_unavailable")
        assert self.info is not None and self._process is not None
        choices, most = request.params.n, self._server.max_queued_requests
        if choices > self.info.max_num_seqs + most:
            raise ApiError(f"n = {choices} is more than this server takes in at once", param="n")
        waiting = self.open_choices + choices - self.info.max_num_seqs
        if waiting > most:
            raise too_busy(waiting - choices, most)
        generation = Generation(self, request)
        self._open[request.id] = generation
        self._process.send(Add(request))
        try:
            await generation.accepted
        except BaseException:
            self.forget(generation)
            raise
        return generation

    def forget_prefixes(self) -> None:
        """Let the engine forget every known prefix, before its next step."""
        if self._process:
            self._process.send(ForgetPrefixes())

    def forget(self, generation: Generation) -> None:
        """Stop listening to a request, and abort it if it still runs."""
        known = self._open.pop(generation.request.id, None)
        if known is not None and not generation.done and self._process:
            self._process.send(Abort(generation.request.id))

    def _hear(self, process: EngineProcess, message: Message) -> None:
        if process is not self._process and not isinstance(message, Ended):
            return
        self._heard = time.monotonic()
        if isinstance(message, News):
            self._take_news(message)
        elif isinstance(message, Accepted):
            if (generation := self._open.get(message.id)) and not generation.accepted.done():
                generation.accepted.set_result(None)
        elif isinstance(message, Refused):
            if (generation := self._open.get(message.id)) and not generation.accepted.done():
                generation.done = True
                generation.accepted.set_exception(as_api_error(message.error))
        elif isinstance(message, Ready):
            self.info, self.figures = message.info, message.figures
            if self._ready and not self._ready.done():
                self._ready.set_result(message.info)
        else:
            self._end(process, message.error)

    def _take_news(self, news: News) -> None:
        self.figures = news.figures
        for event in news.events:
            if generation := self._open.get(event.id):
                generation.news.put_nowait(event)
        for listener in self.listeners:
            listener(news)

    def _end(self, process: EngineProcess, error: PacelineError) -> None:
        """The process is gone: every open request gets the reason."""
        if process is not self._process:  # it was asked to
            return
        was_ready, self.info, self.failure = self.info is not None, None, error
        for generation in self._open.values():
            if not generation.accepted.done():
                generation.accepted.set_exception(ApiError(str(error), 500, code="engine_failed"))
            generation.news.put_nowait(error)
        if not was_ready and self._ready and not self._ready.done():
            self._ready.set_exception(error)
            return
        logger.error("the engine has died: %s", error)
        self.on_end(error)

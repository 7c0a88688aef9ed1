"""Runs the server: HTTP at once, the engine beside it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from paceline.errors import ConfigError, PacelineError
from paceline.serve.app import Backend, make_app
from paceline.serve.engine import EngineClient
from paceline.serve.guards import MAX_HEADER_BYTES
from paceline.serve.service import Service

if TYPE_CHECKING:
    from paceline.config.serving import Serving

logger = logging.getLogger("paceline.serve")

DONE, ENGINE_DIED = 0, 1


class _Http(uvicorn.Server):
    """uvicorn without its signal handlers: ours also end the engine, and choose the exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class Server:
    """One server from start to end."""

    def __init__(self, serving: Serving, announce: Callable[[str], None] | None = None):
        """`announce` is told where the server listens, once it can generate."""
        self._serving = serving
        self._announce = announce or (lambda url: None)
        self.client = EngineClient(serving.engine, serving.server)
        self.client.on_end = self._engine_died
        self.backend = Backend(self.client)
        self._failure: PacelineError | None = None
        self._starting: asyncio.Task[None] | None = None
        config = serving.server
        self._http = _Http(
            uvicorn.Config(
                make_app(self.backend, config),
                host=config.host,
                port=config.port,
                http="h11",  # whatever else is installed: the bound on unfinished headers is h11's
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=max(1, round(config.drain_s)),
            )
        )

    async def run(self) -> int:
        """Serve until asked to stop; returns the exit code.

        Raises the engine's error if it cannot start, and `ConfigError` where nothing can listen.
        """
        await _check_address(self._serving.server.host, self._serving.server.port)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        watching = asyncio.create_task(self.client.watch())
        self._starting = asyncio.create_task(self._start_engine())
        try:
            await self._http.serve()
        finally:
            for task in (watching, self._starting):
                task.cancel()
            await self.client.stop()
        if self._failure is not None and self.backend.service is None:
            raise self._failure
        return ENGINE_DIED if self._failure is not None else DONE

    def stop(self) -> None:
        """Take no new connections, let running answers end within the time for it, then end."""
        self._http.should_exit = True

    def url(self) -> str:
        """Where the server listens."""
        host, port = self._http.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def _start_engine(self) -> None:
        try:
            info = await self.client.start()
            # Loading a tokenizer takes a while; /health answers meanwhile.
            self.backend.service = await asyncio.to_thread(Service, self._serving, self.client, info)
        except PacelineError as error:
            self._failure = error
            self.stop()
            return
        while not self._http.started:
            await asyncio.sleep(0.01)
        self._announce(self.url())

    def _engine_died(self, error: PacelineError) -> None:
        if self._serving.server.on_engine_failure == "restart" and self.backend.service is not None:
            self._starting = asyncio.get_running_loop().create_task(self._restart_engine())
            return
        self._failure = error
        self.stop()

    async def _restart_engine(self) -> None:
        await self.client.stop()
        try:
            await self.client.start()
            logger.warning("the engine runs again")
        except PacelineError as error:
            self._failure = error
            self.stop()


async def _check_address(host: str, port: int) -> None:
    """Raise `ConfigError` where an address cannot be listened on, before an engine is started for nothing."""
    try:
        listening = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host} port {port} ({reason}): give another --host or --port; port 0 is any "
            "free one",
            key="port",
        ) from None
    listening.close()


def serve(serving: Serving, announce: Callable[[str], None]) -> int:
    """Run a server in this thread until it is asked to stop; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, format="paceline: %(message)s", level=logging.WARNING)
    # It warns of every write to a connection that has just gone, which is nothing to warn of.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    return asyncio.run(Server(serving, announce).run())

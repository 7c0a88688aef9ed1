"""The other end of the engine's process: starts it, feeds it, and hands on what it says."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

from paceline.engine import process
from paceline.engine.messages import Command, Ended, Message, Stop
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.config import EngineConfig

GRACE_S = 5.0
"""Time that an engine gets to end by itself once its pipe is closed."""


class EngineProcess:
    """One engine process. Its messages come to `listener`, on a thread of its own; the last is `Ended`."""

    def __init__(self, config: EngineConfig, listener: Callable[[Message], None]):
        self._config, self._listener = config, listener
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # A fresh interpreter: a fork would copy the server's threads and whatever they hold locked.
        context = multiprocessing.get_context("spawn")
        self._connection, self._far_end = context.Pipe()
        self._process = context.Process(
            target=process.main, args=(self._far_end, config), name="paceline-engine", daemon=True
        )

        self._at_exit: Finalize | None = None

    @property
    def pid(self) -> int | None:
        """The operating system's number of the process."""
        return self._process.pid

    def start(self) -> None:
        """Start the process; `Ready` or `Ended` follows."""
        self._process.start()
        # A program that ends without `close` would wait for a process that waits for it.
        self._at_exit = Finalize(None, self._process.kill, exitpriority=0)
        self._far_end.close()  # so that the end of the process is the end of the pipe
        for target in (self._listen, self._speak):
            thread = threading.Thread(target=target, name=f"engine{target.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def send(self, command: Command) -> None:
        """Queue a command; never waits for the engine."""
        self._commands.put(command)

    def kill(self) -> None:
        """End a process that answers no more; `Ended` follows, as when it dies by itself."""
        self._process.kill()

    def close(self) -> None:
        """End the process, with force if it does not end by itself. All messages are delivered on return."""
        self._commands.put(Stop())
        self._process.join(GRACE_S)
        if self._process.is_alive():
            self._process.kill()  # an engine that is stuck, or stopped, hears nothing else
            self._process.join()
        if self._at_exit is not None:
            self._at_exit.cancel()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        connection: Connection = self._connection
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self._process.join(GRACE_S)
                code = self._process.exitcode
                message = Ended(PacelineError(f"the engine's process has ended (exit code {code})"))
            self._listener(message)
            if isinstance(message, Ended):
                return

    def _speak(self) -> None:
        command: Command | None = None
        while not isinstance(command, Stop):
            command = self._commands.get()
            try:
                self._connection.send(command)
            except OSError:
                return  # the listener says what has happened

"""The engine in a process of its own: its loop, as the server's process starts it.

A process rather than a thread, because the loop must not wait for an interpreter that parses JSON, and
because a crash in native code must leave a server that can say so. The pipe carries ids and text, never
tensors. When the other end goes away, the process ends.
"""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from paceline.engine.messages import (
    Abort,
    Accepted,
    Add,
    Command,
    Ended,
    EngineInfo,
    Figures,
    ForgetPrefixes,
    Message,
    News,
    Ready,
    Refused,
    Stop,
)
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.config import EngineConfig
    from paceline.engine.assemble import Assembled
    from paceline.engine.core import Engine

PROOF_TOKENS = 2
"""Tokens written before the engine calls itself ready: one of a prompt, one of a verification."""


def main(connection: Connection, config: EngineConfig) -> None:
    """Load the engine, prove that it writes, and serve until the other end closes the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the server decides, and drains
    warnings.formatwarning = lambda message, *_, **__: f"paceline: {' '.join(str(message).split())}\n"
    loop = None
    try:
        parts = _load(config)
        loop = EngineLoop(connection, parts.engine)
        loop.say(Ready(_info(parts), figures(parts.engine)))
        loop.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except PacelineError as error:
        connection.send(Ended(error))
        sys.exit(1)
    except BaseException as error:
        traceback.print_exc()
        connection.send(Ended(PacelineError(f"the engine failed: {error!r}")))
        sys.exit(1)


class EngineLoop:
    """Takes commands between steps, steps while there is work, and reports after each step."""

    def __init__(self, connection: Connection, engine: Engine):
        self._connection, self._engine = connection, engine

    def say(self, message: Message) -> None:
        """Send one message."""
        self._connection.send(message)

    def run(self) -> None:
        """Serve until `Stop`; raises `EOFError` when nobody listens any more."""
        while True:
            while self._connection.poll(0 if self._engine.has_work else None):
                command = self._connection.recv()
                if isinstance(command, Stop):
                    return
                self._obey(command)
            events = self._engine.step()
            self.say(News(events, figures(self._engine)))

    def _obey(self, command: Command) -> None:
        if isinstance(command, Add):
            self._add(command)
            return
        if isinstance(command, Abort):
            self._engine.abort(command.id)
        elif isinstance(command, ForgetPrefixes) and self._engine.runner.prefix:
            self._engine.runner.prefix.clear()
        self.say(News([], figures(self._engine)))

    def _add(self, command: Add) -> None:
        request = command.request
        try:
            self._engine.add(request)
        except PacelineError as error:
            self.say(Refused(request.id, error))
        else:
            self.say(Accepted(request.id))


def figures(engine: Engine) -> Figures:
    """How full an engine is now."""
    scheduler = engine.scheduler
    blocks, slots, prefix = scheduler.blocks, scheduler.slots, engine.runner.prefix
    return Figures(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting) + len(scheduler.swapped),
        blocks_used=blocks.num_usable - blocks.num_free,
        blocks_total=blocks.num_usable,
        slots_used=slots.num_slots - 1 - slots.num_free,
        slots_total=slots.num_slots - 1,
        preemptions=engine.num_preemptions,
        prefix_queries=prefix.queried_tokens if prefix else 0,
        prefix_hits=prefix.hit_tokens if prefix else 0,
        checkpoints=prefix.num_checkpoints if prefix else 0,
    )


def _load(config: EngineConfig) -> Assembled:
    """Assemble and prove: an engine that cannot write a token is not ready, whatever it has loaded."""
    from paceline.config import SamplingParams
    from paceline.engine.assemble import assemble
    from paceline.engine.request import Request

    parts = assemble(config)
    room = parts.resolved.max_model_len - 1
    params = SamplingParams(temperature=0.0, max_tokens=min(PROOF_TOKENS, room), ignore_eos=True)
    parts.engine.add(Request("start", [0], params, seed=0))
    error = None
    while parts.engine.has_work:
        for event in parts.engine.step():
            error = error or event.error
    if error:
        raise error
    return parts


def _info(parts: Assembled) -> EngineInfo:
    from paceline.engine.describe import describe

    resolved = parts.resolved
    speculative = resolved.config.speculative
    return EngineInfo(
        folder=str(resolved.folder),
        vocab_size=resolved.spec.vocab_size,
        max_model_len=resolved.max_model_len,
        num_drafts=resolved.num_drafts,
        method=speculative.method if speculative else None,
        max_num_seqs=resolved.config.max_num_seqs,
        generation_config=parts.generation_config,
        plan=describe(parts),
    )

"""Runs the mixed load with many clients at once, and judges every answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.serving.http import Connection
from paceline.bench.serving.mix import ANSWERED, Ask, Kind
from paceline.bench.serving.offline import Expected

HANG_S = 180.0
"""An answer that takes longer hangs."""


@dataclass(slots=True)
class Outcome:
    """What a load has come to."""

    requests: int = 0
    seconds: float = 0.0
    client_cpu_seconds: float = 0.0
    hangs: int = 0
    wrong: list[str] = field(default_factory=list)
    """Answers with another text than the offline engine's."""
    failed: list[str] = field(default_factory=list)
    """Answers with another status or form than their kind must have."""
    by_kind: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    """Tokens of the answers that were compared."""


def run(
    address: tuple[str, int],
    load: Sequence[Ask],
    expected: Mapping[tuple[Kind, int], Expected],
    clients: int,
) -> Outcome:
    """Send `load` with `clients` clients at once; each sends its next when it has an answer."""
    outcome = Outcome()
    waiting = iter(load)

    async def client() -> None:
        connection = Connection(*address)
        for ask in waiting:
            await _one(connection, ask, expected, outcome)
        connection.close()

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    start, cpu = time.perf_counter(), time.process_time()
    asyncio.run(all_clients())
    outcome.seconds, outcome.client_cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return outcome


async def _one(
    connection: Connection, ask: Ask, expected: Mapping[tuple[Kind, int], Expected], outcome: Outcome
) -> None:
    outcome.requests += 1
    outcome.by_kind[ask.kind] += 1
    name = f"{ask.kind} {ask.variant}"
    try:
        async with asyncio.timeout(HANG_S):
            if ask.kind in ANSWERED:
                await _answered(connection, ask, expected[ask.kind, ask.variant], outcome)
            elif ask.kind in ("too_long", "malformed"):
                await _refused(connection, ask, outcome)
            else:
                await _left(connection, ask)
    except TimeoutError:
        outcome.hangs += 1
        connection.close()
    except (ConnectionError, asyncio.IncompleteReadError, ValueError, KeyError) as error:
        outcome.failed.append(f"{name}: {type(error).__name__} {error}")
        connection.close()


async def _answered(connection: Connection, ask: Ask, expected: Expected, outcome: Outcome) -> None:
    await connection.send("POST", ask.path, ask.body)
    if await connection.head() != 200:
        outcome.failed.append(f"{ask.kind} {ask.variant}: {connection.status} {await connection.body()!r}")
        return
    if ask.kind in ("streamed", "tools"):
        events = [event async for event in connection.events()]
        right = _same_tokens(events, expected)
    else:
        choice = json.loads(await connection.body())["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
        right = text == expected.text
    outcome.tokens += len(expected.token_ids)
    if not right:
        outcome.wrong.append(f"{ask.kind} {ask.variant}")


def _same_tokens(events: list[dict[str, Any]], expected: Expected) -> bool:
    """Whether a traced stream holds the offline engine's tokens.

    A parser may end an answer sooner, behind what nothing can follow; the server then stops the engine.
    """
    ids = [token["id"] for event in events for token in event.get("paceline", {}).get("tokens", [])]
    reasons = [choice.get("finish_reason") for event in events for choice in event["choices"]]
    if ids == expected.token_ids:
        return any(reasons)
    ended = any(reason in ("stop", "tool_calls") for reason in reasons)
    return ended and 0 < len(ids) < len(expected.token_ids) and expected.token_ids[: len(ids)] == ids


async def _refused(connection: Connection, ask: Ask, outcome: Outcome) -> None:
    await connection.send("POST", ask.path, ask.body)
    status = await connection.head()
    body = json.loads(await connection.body())
    if status != 400 or not body["error"]["message"]:
        outcome.failed.append(f"{ask.kind} {ask.variant}: {status} {body}")


async def _left(connection: Connection, ask: Ask) -> None:
    """Leave in the middle: after some events, or before the answer has come."""
    await connection.send("POST", ask.path, ask.body)
    if ask.kind == "disconnected":
        await asyncio.sleep(ask.leave_after)
    else:
        await connection.head()
        seen = 0
        async for _ in connection.events():
            seen += 1
            if seen >= ask.leave_after:
                break
    connection.close()

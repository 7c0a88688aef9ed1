"""Decode rate, overhead and time to first token over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from paceline.bench.rows import Row, from_repetitions, interleave, rounded, summary
from paceline.bench.serving.http import Connection
from paceline.bench.serving.offline import OfflineEngine
from paceline.bench.serving.process import ServerProcess

SHORT, LONG = 8, 104
"""Tokens of the two answers whose difference is measured: the prompt and the start are out of it."""
PROMPT_TOKENS = 64
COMPLETIONS = "/v1/completions"


def prompt_ids(server: ServerProcess, texts: Sequence[str]) -> list[int]:
    """Token ids of all texts, to draw prompts from."""

    async def ask() -> list[int]:
        connection = Connection(server.host, server.port)
        _, answer = await connection.ask("POST", "/tokenize", {"prompt": "\n".join(texts)})
        connection.close()
        found: list[int] = answer["tokens"]
        return found

    return asyncio.run(ask())


def draw(ids: Sequence[int], batch: int, length: int, seed: int) -> list[list[int]]:
    """`batch` prompts of `length` ids that no other seed gives: no known prefix makes a repetition faster."""
    chooser = random.Random(seed)
    return [chooser.choices(ids, k=length) for _ in range(batch)]


async def _answer(server: ServerProcess, prompt: list[int], tokens: int, stream: bool) -> float:
    """Ask for one greedy answer and read it to its end; returns the seconds to its first piece."""
    connection = Connection(server.host, server.port)
    body = {
        "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "stream": stream,
    }  # fmt: skip
    start = time.perf_counter()
    await connection.send("POST", COMPLETIONS, json.dumps(body).encode())
    status = await connection.head()
    assert status == 200, await connection.body()
    first = 0.0
    if stream:
        async for _ in connection.pieces():  # unread: the client's own time is no figure of the server's
            first = first or time.perf_counter() - start
    else:
        await connection.body()
    connection.close()
    return first


def decode_seconds(server: ServerProcess, prompts: list[list[int]], tokens: int, stream: bool) -> float:
    """Seconds until all prompts, sent at once, have their `tokens` tokens."""

    async def all_answers() -> None:
        await asyncio.gather(*(_answer(server, prompt, tokens, stream) for prompt in prompts))

    start = time.perf_counter()
    asyncio.run(all_answers())
    return time.perf_counter() - start


def rates(
    server: ServerProcess, offline: OfflineEngine, ids: Sequence[int], batch: int, reps: int
) -> dict[str, list[float]]:
    """Decoded tokens a second, by way and repetition: `offline`, `streamed`, `whole`; the ways take turns."""
    seeds = iter(range(10**6))

    def rate(seconds: Any) -> float:
        prompts = draw(ids, batch, PROMPT_TOKENS, next(seeds))
        short = seconds(prompts, SHORT)
        long = seconds(draw(ids, batch, PROMPT_TOKENS, next(seeds)), LONG)
        return batch * (LONG - SHORT) / max(long - short, 1e-9)

    tasks = {
        "offline": lambda: rate(offline.decode),
        "streamed": lambda: rate(lambda prompts, tokens: decode_seconds(server, prompts, tokens, True)),
        "whole": lambda: rate(lambda prompts, tokens: decode_seconds(server, prompts, tokens, False)),
    }
    for task in tasks.values():
        task()  # what is compiled or allocated at first use
    return dict(zip(tasks, interleave(reps, list(tasks.values())), strict=True))


def decode_row(
    server: ServerProcess, offline: OfflineEngine, ids: Sequence[int], batch: int, reps: int
) -> Row:
    """Aggregate decode over HTTP, streamed, over the offline engine's."""
    cpu, start, served = time.process_time(), time.perf_counter(), server.cpu_seconds()
    found = rates(server, offline, ids, batch, reps)
    seconds = time.perf_counter() - start
    detail = {
        "batch": batch,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": [SHORT, LONG],
        "tokens_per_s": {way: summary(values) for way, values in found.items()},
        "client_cpu_s": rounded(time.process_time() - cpu),
        "server_cpu_s": rounded(server.cpu_seconds() - served),
        "seconds": rounded(seconds),
    }
    values = [s / o for s, o in zip(found["streamed"], found["offline"], strict=True)]
    title = f"decode over HTTP, {batch} streams, over the offline engine"
    return from_repetitions("serve_decode_ratio", title, values, 0.85, ">=", detail)


def overhead_row(server: ServerProcess, offline: OfflineEngine, ids: Sequence[int], reps: int) -> Row:
    """Milliseconds that HTTP adds to a token of a single stream."""
    found = rates(server, offline, ids, 1, reps)
    values = [1000 / s - 1000 / o for s, o in zip(found["streamed"], found["offline"], strict=True)]
    detail = {"tokens_per_s": {way: summary(values) for way, values in found.items()}}
    title = "milliseconds a token that HTTP adds, batch 1"
    return from_repetitions("serve_overhead_ms", title, values, 1.5, "<=", detail)


def prefix_row(server: ServerProcess, ids: Sequence[int], length: int, reps: int) -> Row:
    """Time to first token of a known prompt over the same prompt's when it was new."""
    cold: list[float] = []
    warm: list[float] = []
    for repetition in range(reps):
        (prompt,) = draw(ids, 1, length, 10**7 + repetition)
        for times in (cold, warm):
            times.append(asyncio.run(_answer(server, prompt, 2, True)))
    detail = {
        "prompt_tokens": length,
        "cold_ms": summary([1000 * value for value in cold]),
        "warm_ms": summary([1000 * value for value in warm]),
    }
    values = [w / c for w, c in zip(warm, cold, strict=True)]
    title = f"time to first token, known prefix of {length} tokens, over cold"
    return from_repetitions("serve_warm_ttft", title, values, 0.15, "<=", detail)

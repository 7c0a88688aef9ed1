"""The mixed load as rows: what hung, failed or was wrong, and what it left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.rows import Row, judged, rounded
from paceline.bench.serving import load
from paceline.bench.serving.http import Connection
from paceline.bench.serving.mix import ANSWERED, COMPLETIONS, Ask, Kind
from paceline.bench.serving.offline import Expected
from paceline.bench.serving.process import ServerProcess

HELD = ("paceline:kv_blocks_used", "paceline:recurrent_slots_used", "paceline:checkpoints")
"""What a leak would leave behind, once the prefix index was told to forget."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What a load has come to, and the server's state around it."""

    parts: tuple[load.Outcome, load.Outcome]
    """The requests before memory was first read, and the rest."""
    clients: int
    mib: tuple[float, float]
    """Memory at rest after each part."""
    metrics: tuple[dict[str, float], dict[str, float], dict[str, float]]
    """Before, after at rest, and after the prefix index was told to forget."""
    server_cpu_seconds: float


def run(
    server: ServerProcess,
    asks: Sequence[Ask],
    expected: Mapping[tuple[Kind, int], Expected],
    clients: int,
    early: int,
) -> Readings:
    """Send all requests; memory is read at rest, after the first `early` and at the end."""
    address = (server.host, server.port)
    before, cpu = forget(server), server.cpu_seconds()
    outcomes, memory = [], []
    for part in (asks[:early], asks[early:]):
        outcomes.append(load.run(address, part, expected, clients))
        rest = server.at_rest()
        memory.append(server.unique_mib())
    return Readings(
        parts=(outcomes[0], outcomes[1]),
        clients=clients,
        mib=(memory[0], memory[1]),
        metrics=(before, rest, forget(server)),
        server_cpu_seconds=server.cpu_seconds() - cpu,
    )


def forget(server: ServerProcess) -> dict[str, float]:
    """Let the prefix index forget; the metrics once everything is at rest."""

    async def ask() -> None:
        connection = Connection(server.host, server.port)
        await connection.ask("POST", "/reset_prefix_cache")
        # The engine forgets before its next step: give it one.
        await connection.ask("POST", COMPLETIONS, {"prompt": [5], "max_tokens": 1})
        await connection.ask("POST", "/reset_prefix_cache")
        connection.close()

    asyncio.run(ask())
    return server.at_rest()


def rows(found: Readings) -> list[Row]:
    """Rows of a load."""
    before, _, after = found.metrics
    requests = found.parts[0].requests
    wrong = [name for part in found.parts for name in part.wrong]
    failed = [text for part in found.parts for text in part.failed]
    compared = sum(part.by_kind[kind] for part in found.parts for kind in ANSWERED)
    leaked = sum(abs(after[name] - before[name]) for name in HELD)
    states = zip(("before", "after_load", "after_forgetting"), found.metrics, strict=True)
    held = {label: {name: metrics[name] for name in HELD} for label, metrics in states}
    growth = found.mib[1] / found.mib[0]
    memory = {"mib_early": rounded(found.mib[0]), "mib_late": rounded(found.mib[1]), "early_at": requests}
    return [
        _count("serve_hangs", "answers that never came", sum(p.hangs for p in found.parts), _course(found)),
        _count("serve_wrong_texts", "answers with another text than the offline engine's", len(wrong),
               {"which": wrong[:20], "compared": compared}),
        _count("serve_failed", "answers of another status or form than their kind's", len(failed),
               {"which": failed[:20]}),
        _count("serve_leaked", "blocks, slots and checkpoints left behind", leaked, held),
        Row("serve_memory_growth", f"unique memory at the end over that after {requests} requests",
            growth, 1.03, "<=", judged(growth, 1.03, "<="), reps=1, detail=memory),
    ]  # fmt: skip


def _course(found: Readings) -> dict[str, Any]:
    """How the load went."""
    before, _, after = found.metrics
    seconds = sum(part.seconds for part in found.parts)
    requests = sum(part.requests for part in found.parts)
    looked_up = after["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"]
    hits = after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"]
    return {
        "requests": requests,
        "clients": found.clients,
        "by_kind": dict(found.parts[0].by_kind + found.parts[1].by_kind),
        "seconds": rounded(seconds),
        "requests_per_s": rounded(requests / seconds),
        "compared_tokens": sum(part.tokens for part in found.parts),
        "generated_tokens": after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"],
        "client_cpu_s": rounded(sum(part.client_cpu_seconds for part in found.parts)),
        "server_cpu_s": rounded(found.server_cpu_seconds),
        "prefix_hit_rate": rounded(hits / max(1.0, looked_up)),
        "preemptions": after["vllm:num_preemptions_total"] - before["vllm:num_preemptions_total"],
    }


def _count(name: str, title: str, value: float, detail: dict[str, Any]) -> Row:
    return Row(name, title, float(value), 0.0, "==", met=value == 0, reps=1, detail=detail)

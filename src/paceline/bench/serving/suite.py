"""All of the server's figures, in one run."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench import machine
from paceline.bench.rows import Row, judged, rounded
from paceline.bench.serving import load, mix, speed
from paceline.bench.serving.http import Connection
from paceline.bench.serving.offline import EngineSettings, OfflineEngine
from paceline.bench.serving.process import ServerProcess

HELD = ("paceline:kv_blocks_used", "paceline:recurrent_slots_used", "paceline:checkpoints")
"""What a leak would leave behind, once the prefix index was told to forget."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    engine: EngineSettings
    texts: Sequence[str]
    requests: int = 2000
    early: int = 200
    """Requests before memory is first measured."""
    clients: int = 64
    reps: int = 5
    prefix_tokens: int = 3000
    chat_template_file: str | None = None


def run(options: Options) -> list[Row]:
    """Measure every row."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with OfflineEngine(options.engine) as offline:
            asked = mix.questions(options.texts)
            expected = dict(zip(asked, offline.answers(list(asked.values())), strict=True))
        with ServerProcess(_arguments(options, options.engine.speculative_config), log) as server:
            ids = speed.prompt_ids(server, options.texts)
            _write_every_block(server, options, ids)
            rows = _loaded(server, options, expected)
            rows.append(speed.prefix_row(server, ids, options.prefix_tokens, options.reps))
        plain = EngineSettings(options.engine.model, None, options.engine.max_num_seqs,
                               options.engine.max_model_len)  # fmt: skip
        with ServerProcess(_arguments(options, None), log) as server, OfflineEngine(plain) as offline:
            batch = options.engine.max_num_seqs
            rows.append(speed.decode_row(server, offline, ids, batch, options.reps))
            rows.append(speed.overhead_row(server, offline, ids, options.reps))
    return rows


def _arguments(options: Options, speculative: dict[str, Any] | None) -> list[str]:
    engine = options.engine
    arguments = [
        engine.model, "--max-num-seqs", str(engine.max_num_seqs),
        "--max-model-len", str(engine.max_model_len),
        "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder", "--enable-auto-tool-choice",
    ]  # fmt: skip
    if speculative is not None:
        arguments += ["--speculative-config", json.dumps(speculative)]
    if options.chat_template_file is not None:
        arguments += ["--chat-template", options.chat_template_file]
    return arguments


def _write_every_block(server: ServerProcess, options: Options, ids: Sequence[int]) -> None:
    """Fill the KV pool once: it takes its pages when they are first written, which is no growth of a leak."""
    engine, tokens = options.engine, 8
    prompts = speed.draw(ids, engine.max_num_seqs, engine.max_model_len - tokens - 1, seed=10**8)
    speed.decode_seconds(server, prompts, tokens, stream=False)


def _forget(server: ServerProcess) -> dict[str, float]:
    """Let the prefix index forget; the metrics once everything is at rest."""

    async def ask() -> None:
        connection = Connection(server.host, server.port)
        await connection.ask("POST", "/reset_prefix_cache")
        # The engine forgets before its next step: give it one.
        await connection.ask("POST", speed.COMPLETIONS, {"prompt": [5], "max_tokens": 1})
        await connection.ask("POST", "/reset_prefix_cache")
        connection.close()

    asyncio.run(ask())
    return server.at_rest()


def _loaded(server: ServerProcess, options: Options, expected: Any) -> list[Row]:
    """Rows of the mixed load."""
    everything = mix.asks(options.requests, options.texts, options.engine.max_model_len)
    address = (server.host, server.port)
    before, cpu = _forget(server), server.cpu_seconds()
    early = load.run(address, everything[: options.early], expected, options.clients)
    server.at_rest()
    memory_early = server.unique_mib()
    late = load.run(address, everything[options.early :], expected, options.clients)
    rest = server.at_rest()
    memory_late = server.unique_mib()
    after = _forget(server)
    both = (early, late)
    kinds = early.by_kind + late.by_kind
    seconds, tokens = sum(part.seconds for part in both), sum(part.tokens for part in both)
    detail = {
        "requests": options.requests,
        "clients": options.clients,
        "by_kind": dict(kinds),
        "seconds": rounded(seconds),
        "requests_per_s": rounded(options.requests / seconds),
        "compared_tokens": tokens,
        "generated_tokens": after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"],
        "client_cpu_s": rounded(sum(part.client_cpu_seconds for part in both)),
        "server_cpu_s": rounded(server.cpu_seconds() - cpu),
        "prefix_hit_rate": rounded(
            after["vllm:prefix_cache_hits_total"] / max(1.0, after["vllm:prefix_cache_queries_total"])
        ),
        "preemptions": after["vllm:num_preemptions_total"],
    }
    leaks = {name: after[name] - before[name] for name in HELD}
    held = {"before": {n: before[n] for n in HELD}, "after_load": {n: rest[n] for n in HELD},
            "after_forgetting": {n: after[n] for n in HELD}}  # fmt: skip
    wrong = [name for part in both for name in part.wrong]
    failed = [text for part in both for text in part.failed]
    memory = {"mib_early": rounded(memory_early), "mib_late": rounded(memory_late), "early_at": options.early}
    return [
        _count("serve_hangs", "answers that never came", sum(part.hangs for part in both), detail),
        _count("serve_wrong_texts", "answers with another text than the offline engine's", len(wrong),
               {"which": wrong[:20], "compared": sum(kinds[kind] for kind in mix.ANSWERED)}),
        _count("serve_failed", "answers of another status or form than their kind's", len(failed),
               {"which": failed[:20]}),
        _count("serve_leaked", "blocks, slots and checkpoints left behind",
               sum(abs(value) for value in leaks.values()), held),
        _one("serve_memory_growth", f"unique memory at the end over that after {options.early} requests",
             memory_late / memory_early, 1.03, memory),
    ]  # fmt: skip


def _count(name: str, title: str, value: float, detail: dict[str, Any]) -> Row:
    return Row(name, title, float(value), 0.0, "==", met=value == 0, reps=1, detail=detail)


def _one(name: str, title: str, value: float, target: float, detail: dict[str, Any]) -> Row:
    return Row(name, title, value, target, "<=", judged(value, target, "<="), reps=1, detail=detail)


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"title": "The server's figures", **machine.environment()}

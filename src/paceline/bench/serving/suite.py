"""All of the server's figures, in one run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench import machine
from paceline.bench.rows import Row
from paceline.bench.serving import mix, mixed, speed
from paceline.bench.serving.offline import EngineSettings, OfflineEngine
from paceline.bench.serving.process import ServerProcess


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
            asks = mix.asks(options.requests, options.texts, options.engine.max_model_len)
            rows = mixed.rows(mixed.run(server, asks, expected, options.clients, options.early))
            rows[0].detail.update(_settings(options))
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


def _settings(options: Options) -> dict[str, Any]:
    """What the engines were started with, for the report."""
    engine = options.engine
    return {
        "model": engine.model,
        "drafts": engine.speculative_config or "none",
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": engine.max_model_len,
        "chat_template": "given" if engine.chat_template else "the model's own",
    }


def _write_every_block(server: ServerProcess, options: Options, ids: Sequence[int]) -> None:
    """Fill the KV pool once: it takes its pages when they are first written, which is no growth of a leak."""
    engine, tokens = options.engine, 8
    prompts = speed.draw(ids, engine.max_num_seqs, engine.max_model_len - tokens - 1, seed=10**8)
    speed.decode_seconds(server, prompts, tokens, stream=False)


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"title": "The server's figures", **machine.environment()}

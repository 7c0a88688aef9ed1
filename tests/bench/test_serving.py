"""The server's benchmark on a tiny model: every row, and that what it looks for would be found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.bench.serving import load, mix, speed
from paceline.bench.serving.__main__ import main
from paceline.bench.serving.http import Connection
from paceline.bench.serving.offline import EngineSettings, Expected, OfflineEngine
from paceline.bench.serving.process import ServerFailedError, ServerProcess
from paceline.errors import PacelineError
from tests.tiny import make_target

TEXTS = ["the cat", "in the man and the", "then a hat"]
MTP = {"method": "mtp", "num_speculative_tokens": 3}
FLAGS = ["--max-model-len", "512", "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder",
         "--enable-auto-tool-choice", "--speculative-config", json.dumps(MTP)]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("serving") / "tiny")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with ServerProcess([str(folder), *FLAGS], log) as running:
        yield running


@pytest.mark.slow
def test_every_row(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgrammar")
    monkeypatch.setattr(speed, "LONG", 24)
    monkeypatch.setattr(mix, "VARIANTS", 6)
    monkeypatch.setattr("paceline.bench.machine.memory_read_rate", lambda: 1.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    out = tmp_path / "rows.json"
    code = main(
        ["--out", str(out), "--model", str(folder), "--speculative-config", json.dumps(MTP), "--threads", "1",
         "--requests", "80", "--clients", "8", "--reps", "1", "--max-num-seqs", "4", "--max-model-len", "512",
         "--prefix-tokens", "300"]
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    assert code == 0 and len(rows) == 8
    for name in ("serve_hangs", "serve_wrong_texts", "serve_failed", "serve_leaked"):
        assert rows[name]["value"] == 0 and rows[name]["met"], rows[name]
    assert rows["serve_wrong_texts"]["detail"]["compared"] == 40
    assert rows["serve_hangs"]["detail"]["by_kind"] == dict.fromkeys(mix.KINDS, 10)
    assert rows["serve_hangs"]["detail"]["compared_tokens"] > 100
    assert rows["serve_decode_ratio"]["value"] > 0 and rows["serve_warm_ttft"]["value"] < 1
    assert rows["serve_memory_growth"]["detail"]["mib_early"] > 50
    report = out.with_suffix(".md").read_text()
    assert report.startswith("# The server's figures") and "serve_leaked" in report


def expected_of(folder: Path) -> dict[tuple[mix.Kind, int], Expected]:
    asked = mix.questions(TEXTS)
    with OfflineEngine(EngineSettings(str(folder), MTP, 4, 512)) as offline:
        return dict(zip(asked, offline.answers(list(asked.values())), strict=True))


@pytest.mark.slow
def test_a_wrong_text_a_wrong_status_and_a_hang_are_found(
    folder: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xgrammar")
    monkeypatch.setattr(mix, "VARIANTS", 2)
    expected = expected_of(folder)
    spoilt = {
        (kind, variant): Expected([*ids.token_ids[:-1], 7], ids.text + "!") if variant else ids
        for (kind, variant), ids in expected.items()
    }
    address = (server.host, server.port)
    asks = mix.asks(64, TEXTS, 512)
    outcome = load.run(address, asks, spoilt, 8)
    compared = [ask for ask in asks if ask.kind in mix.ANSWERED]
    assert len(outcome.wrong) == sum(ask.variant for ask in compared) > 0
    assert outcome.hangs == 0 and outcome.failed == []
    fits = [mix.Ask("too_long", 0, mix.COMPLETIONS, b'{"prompt": "a", "max_tokens": 1}')]
    assert load.run(address, fits, expected, 1).failed
    monkeypatch.setattr(load, "HANG_S", 0.001)
    assert load.run(address, compared[:4], expected, 2).hangs == 4
    assert not any(
        server.at_rest()[name] for name in ("paceline:kv_blocks_used", "vllm:num_requests_running")
    )


def test_a_stream_that_a_parser_has_ended_may_be_shorter() -> None:
    def events(ids: list[int], reason: str) -> list[dict[str, object]]:
        traced = [{"paceline": {"tokens": [{"id": i}]}, "choices": [{"finish_reason": None}]} for i in ids]
        return [*traced, {"choices": [{"finish_reason": reason}]}]

    expected = Expected([4, 5, 6], "abc")
    assert load._same_tokens(events([4, 5, 6], "length"), expected)
    assert load._same_tokens(events([4, 5], "tool_calls"), expected)
    assert not load._same_tokens(events([4, 5], "length"), expected)
    assert not load._same_tokens(events([4, 7], "stop"), expected)
    assert not load._same_tokens(events([4, 5, 6, 7], "stop"), expected)


def test_the_client_reads_whole_and_chunked_bodies() -> None:
    answers = [
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}',
        b"HTTP/1.1 404 No\r\ntransfer-encoding: chunked\r\n\r\n"
        b'f\r\ndata: {"n": 1}\n\r\n5\r\n\ndata\r\n17\r\n: {"n": 2}\n\ndata: [DONE\r\n3\r\n]\n\n\r\n0\r\n\r\n',
    ]

    async def talk() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for text in answers:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(text)
            await reader.read(1)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        connection = Connection("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await connection.ask("GET", "/") == (200, {"a": 1})
        await connection.send("GET", "/")
        assert await connection.head() == 404
        assert [event async for event in connection.events()] == [{"n": 1}, {"n": 2}]
        connection.close()
        server.close()

    asyncio.run(talk())


def test_failures_have_the_engines_own_words(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailedError, match="no-such-model"),
        ServerProcess(["no-such-model"], tmp_path / "log"),
    ):
        pass
    with (
        pytest.raises(PacelineError, match="no-such-model"),
        OfflineEngine(EngineSettings("no-such-model", None, 2, 64)),
    ):
        pass

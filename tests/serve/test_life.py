"""The server's own life: ready and ill, full and idle, keys, limits, clients that go, engines that die."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time

import httpx2
import pytest

from paceline.config.serving import Serving
from paceline.errors import ConfigError
from paceline.serve.server import Server
from tests.architecture.tree import ROOT
from tests.serve.harness import Running, running

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "temperature": 0.5, "seed": 1}


def wait_until(condition, timeout=20.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_probes(server):
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/version").json()["version"]
    models = server.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["tiny", "other"]
    assert models[0]["max_model_len"] == 512
    assert models[0]["paceline"] == {"chat": True, "method": "mtp", "num_speculative_tokens": 3}


def test_metrics_count_what_was_done(server):
    before = {
        name: server.metric(name) for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    }
    drafts = server.metric("vllm:spec_decode_num_drafts_total")
    answer = server.complete(max_tokens=20, ignore_eos=True, temperature=0)
    usage, speculation = answer["usage"], answer["paceline"]["speculation"]
    after = {name: server.metric(name) for name in before}
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 20
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert server.metric("vllm:spec_decode_num_drafts_total") - drafts == speculation["num_drafts"]
    assert server.metric("vllm:time_to_first_token_seconds_count") > 0
    assert server.metric("vllm:request_success_total", finished_reason="length") > 0
    text = server.http.get("/metrics").text
    for position in range(3):
        assert f'position="{position}"' in text
    assert 'model_name="tiny"' in text and 'engine="0"' in text


def test_the_dashboard_asks_for_metrics_that_exist(server):
    dashboard = json.loads((ROOT / "examples" / "grafana" / "paceline.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"(?:vllm|paceline):\w+", query)}
    server.complete(max_tokens=4, ignore_eos=True)
    text = server.http.get("/metrics").text
    assert len(asked) > 12 and not [name for name in asked if f"{name}{{" not in text]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_work_stops_when_the_client_goes(server, stream):
    server.at_rest()
    before = server.metric("vllm:generation_tokens_total")
    connection = httpx2.Client(base_url=server.url, timeout=0.3)
    with pytest.raises(httpx2.TimeoutException):
        if stream:
            with connection.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response:
                next(response.iter_lines())
                raise httpx2.ReadTimeout("seen enough")
        connection.post(COMPLETIONS, json=LONG)
    connection.close()
    server.at_rest()
    assert server.metric("vllm:generation_tokens_total") - before < 400


def test_many_at_once_give_the_texts_that_they_give_alone(server):
    bodies = [{**LONG, "seed": seed, "max_tokens": 12 + seed} for seed in range(12)]
    alone = [server.post(COMPLETIONS, body).json()["choices"][0]["text"] for body in bodies]
    texts = [None] * len(bodies)

    def ask(index):
        answer = httpx2.post(f"{server.url}{COMPLETIONS}", json=bodies[index], timeout=60)
        texts[index] = answer.json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == alone
    server.at_rest()


@pytest.fixture(scope="module")
def small(folder):
    """One place, one in line, a key, a small body, blocks for few tokens."""
    with running(
        folder, max_num_seqs=1, max_queued_requests=1, max_model_len=512, num_blocks=6, api_key="secret",
        max_body_mib=0.01,
    ) as server:  # fmt: skip
        server.http.headers["authorization"] = "Bearer secret"
        yield server


def test_the_key_is_asked_for(small):
    wrong = httpx2.Client(base_url=small.url)
    for headers in ({}, {"authorization": "Bearer secre"}, {"authorization": "secret"}):
        response = wrong.get("/v1/models", headers=headers)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    assert wrong.get("/health").status_code == 200
    assert small.http.get("/v1/models").status_code == 200


def test_large_bodies_are_refused_announced_or_not(small):
    body = json.dumps({"prompt": "x" * 20_000}).encode()
    headers = {"content-type": "application/json"}
    assert small.http.post(COMPLETIONS, content=body, headers=headers).status_code == 413
    response = small.http.post(COMPLETIONS, content=iter([body]), headers=headers)
    assert response.status_code == 413


def test_what_can_never_fit_is_refused_at_once(small):
    error = small.error(COMPLETIONS, {"prompt": [5] * 400})
    assert error["code"] == "capacity_exceeded" and "5" in error["message"]


def test_a_full_queue_answers_429(small):
    streams = []
    try:
        for _ in range(2):
            stream = small.http.stream("POST", COMPLETIONS, json={**LONG, "stream": True, "max_tokens": 300})
            streams.append((stream, stream.__enter__()))
        response = small.post(COMPLETIONS, {"prompt": "hi"})
        assert response.status_code == 429 and response.headers["retry-after"]
        assert response.json()["error"]["code"] == "queue_full"
    finally:
        for stream, _ in streams:
            stream.__exit__(None, None, None)
    small.at_rest()


def test_headers_are_bounded_whatever_http_library_is_installed(server):
    assert server.server._http.config.http == "h11"  # only h11 takes the bound
    flood = {f"x-{i}": "a" * 1000 for i in range(70)}
    response = server.http.get("/version", headers=flood)
    assert response.status_code == 431 and response.json()["error"]["code"] == "headers_too_large"
    ordinary = dict(list(flood.items())[:60])
    assert server.http.get("/version", headers=ordinary).status_code == 200


def test_an_address_that_is_taken_is_refused_before_an_engine_starts(server, folder):
    port = int(server.url.rsplit(":", 1)[1])
    for host, said in (
        ("127.0.0.1", "in use"),
        ("256.1.1.1", "cannot listen on 256.1.1.1"),
        ("a..b", "a..b"),
    ):
        other = Server(Serving.of(str(folder), {"port": port, "host": host}, None))
        with pytest.raises(ConfigError, match=said) as refused:
            asyncio.run(other.run())
        assert refused.value.key == "port" and "\n" not in str(refused.value)
        assert other.client.pid is None


@pytest.mark.slow
def test_a_dead_engine_ends_the_server_with_an_error(folder):
    with running(folder, max_model_len=512) as server:
        with server.http.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.server.client.pid, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert rest[-1] == "data: [DONE]"
        server.thread.join(20)
    assert server.exit_code == 1


@pytest.mark.slow
def test_a_dead_engine_is_restarted_if_wished(folder):
    with running(folder, max_model_len=512, on_engine_failure="restart") as server:
        os.kill(server.server.client.pid, signal.SIGKILL)
        wait_until(lambda: server.http.get("/health").status_code == 503)
        wait_until(lambda: server.http.get("/health").status_code == 200, timeout=60)
        assert server.complete(max_tokens=3)["usage"]["completion_tokens"] <= 3
    assert server.exit_code == 0


@pytest.mark.slow
def test_an_engine_that_hangs_is_killed_and_started_anew(folder):
    with running(folder, max_model_len=512, watchdog_s=3.0, on_engine_failure="restart") as server:
        hung = server.server.client.pid
        os.kill(hung, signal.SIGSTOP)
        wait_until(lambda: server.server.client.pid != hung, timeout=30)
        wait_until(lambda: server.http.get("/health").status_code == 200, timeout=60)
        assert server.complete(max_tokens=3)["usage"]["completion_tokens"] <= 3
    assert server.exit_code == 0


@pytest.mark.slow
def test_a_stop_lets_running_answers_end(folder):
    with running(folder, max_model_len=512) as server:
        with server.http.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            server.loop.call_soon_threadsafe(server.server.stop)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
    assert server.exit_code == 0


@pytest.mark.slow
def test_health_is_503_until_the_engine_has_written_and_when_it_is_silent(folder):
    server = Running(folder, max_model_len=512)
    server.thread.start()
    wait_until(lambda: server.server is not None and server.server._http.started)
    url = server.server.url()
    seen = []
    wait_until(lambda: seen.append(httpx2.get(f"{url}/health").status_code) or seen[-1] == 200, timeout=60)
    assert seen[0] == 503
    os.kill(server.server.client.pid, signal.SIGSTOP)
    try:
        server.server.client._heard -= 1000  # as if the watchdog's time had passed
        response = httpx2.get(f"{url}/health")
        assert response.status_code == 503 and "silent" in response.text
        assert httpx2.post(f"{url}{COMPLETIONS}", json={"prompt": "hi"}).status_code == 503
    finally:
        os.kill(server.server.client.pid, signal.SIGCONT)
    server.stop()

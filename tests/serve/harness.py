"""A real server in this process's thread, its engine in a process of its own."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from contextlib import contextmanager

import httpx2

from paceline.config.serving import Serving
from paceline.serve.server import Server


class Running:
    """A running server and an HTTP client for it."""

    def __init__(self, model, **options):
        self.url_queue = queue.SimpleQueue()
        options = {"port": 0, "device": "cpu", **options}
        self.server = None
        self.serving = Serving.of(str(model), options, None)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.exit_code = None
        self.loop = None

    def _run(self):
        async def main():
            self.loop = asyncio.get_running_loop()
            self.server = Server(self.serving, self.url_queue.put)
            return await self.server.run()

        self.exit_code = asyncio.run(main())

    def start(self):
        self.thread.start()
        self.url = self.url_queue.get(timeout=90)
        self.http = httpx2.Client(base_url=self.url, timeout=60)

    def stop(self):
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.server.stop)
        self.thread.join(30)

    def post(self, path, body, **more):
        headers = {"content-type": "application/json"}
        return self.http.post(path, content=json.dumps(body), headers=headers, **more)

    def complete(self, **body):
        response = self.post("/v1/completions", {"prompt": "the cat", **body})
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, text="the cat", **body):
        response = self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body}
        )
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path, body):
        """Every chunk of a stream; the last must be [DONE]."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def error(self, path, body, status=400):
        response = self.post(path, body)
        assert response.status_code == status, (response.status_code, response.text)
        return response.json()["error"]

    def metric(self, name, **labels):
        """The value of a metric, summed over its label sets that have `labels`."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            asked = line.startswith((name + "{", name + " "))
            if asked and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def at_rest(self, timeout=20):
        """Wait until nothing is held any more."""
        held = ("vllm:num_requests_running", "paceline:kv_blocks_used", "paceline:recurrent_slots_used")
        deadline = time.monotonic() + timeout
        while any(self.metric(name) for name in held):
            assert time.monotonic() < deadline, "blocks or slots are still held"
            time.sleep(0.02)


@contextmanager
def running(model, **options):
    """A server for a `with` block."""
    server = Running(model, **options)
    server.start()
    try:
        yield server
    finally:
        server.http.close()
        server.stop()

"""vLLM as a peer: another interpreter, started once, so that its runs can alternate with ours.

Its processes are stopped (SIGSTOP) whenever it is not its turn: an idle engine may still poll, and on two
cores that would be taken from whoever is measured.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from paceline.bench.peers.base import PeerUnavailable, TokenPrompts

WORKER = Path(__file__).with_name("vllm_worker.py")
START_TIMEOUT_S = 420.0
REQUEST_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
# Thread settings of this process are not the peer's business: it binds its own.
_NOT_INHERITED = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "PYTHONPATH", "VIRTUAL_ENV")


def settings(model: Path, max_seqs: int) -> dict[str, Any]:
    """`vllm.LLM` arguments: torch.compile in its default mode, nothing that the timed work does not need."""
    return {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": max_seqs,
        "max_num_batched_tokens": 2048,
        "enforce_eager": False,
        "enable_prefix_caching": False,  # every prompt is read anew, as by the others
        "skip_tokenizer_init": True,
        "seed": 0,
    }


class VllmPeer:
    """A running vLLM. `start` returns at once; `wait_ready` must come before the first request."""

    name = "vllm"

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], arguments: dict[str, Any]):
        self._process, self._log, self._arguments = process, log, arguments
        self._pending = b""
        self._ready: dict[str, Any] = {}
        self._binding: list[dict[str, Any]] = []

    @classmethod
    def start(cls, python: str | None, model: Path, max_seqs: int = 16) -> Self:
        """Start loading in the interpreter `python`. Raises PeerUnavailable when there is none."""
        if not python:
            raise PeerUnavailable("no interpreter with vLLM was named (VLLM_PYTHON)")
        arguments = settings(model, max_seqs)
        environ = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
        environ = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            **environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the peer; `close` closes it
        try:
            process = subprocess.Popen(
                [python, str(WORKER), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                cwd=tempfile.gettempdir(),  # a checkout's folder must not shadow what is installed there
                start_new_session=True,
            )
        except OSError as error:
            log.close()
            raise PeerUnavailable(f"VLLM_PYTHON={python} cannot be run: {error.strerror}") from error
        return cls(process, log, arguments)

    def wait_ready(self) -> None:
        """Wait until the model is loaded and compiled, then note its thread binding and stop it."""
        self._ready = self._read(START_TIMEOUT_S)["ready"]
        self._binding = thread_binding(self._process.pid)
        self._signal(signal.SIGSTOP)

    def seconds(self, prompts: TokenPrompts, max_tokens: int) -> float:
        """See `base.Engine`; the clock runs inside the peer.

        A request of one token goes ahead, untimed: after a stop the first one can take 5 s, which is a
        time-out somewhere between its processes and says nothing about its decoding.
        """
        self._signal(signal.SIGCONT)
        try:
            self._ask(prompts[:1], 1)
            return self._ask(prompts, max_tokens)
        finally:
            self._signal(signal.SIGSTOP)

    def _ask(self, prompts: TokenPrompts, max_tokens: int) -> float:
        """Seconds that the peer took for exactly `max_tokens` tokens of every prompt."""
        assert self._process.stdin is not None
        request = {"prompts": [list(ids) for ids in prompts], "max_tokens": max_tokens}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerUnavailable(f"vLLM ended: {self._last_error()}") from error
        answer = self._read(REQUEST_TIMEOUT_S)
        expected = len(prompts) * max_tokens
        if answer["tokens"] != expected:
            raise PeerUnavailable(f"vLLM made {answer['tokens']} tokens instead of {expected}")
        return float(answer["seconds"])

    def environment(self) -> dict[str, Any]:
        """Versions, arguments and, process by process, which cores its threads may use."""
        shown = {k: v for k, v in self._arguments.items() if k != "model"}
        bind = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
        return {
            **self._ready,
            "arguments": shown,
            "compile": "torch.compile (default mode)",
            "VLLM_CPU_OMP_THREADS_BIND": bind,
            "thread_binding": self._binding,
        }

    def close(self) -> None:
        """End the peer and every process of its session."""
        self._signal(signal.SIGCONT)
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self, timeout: float) -> dict[str, Any]:
        """The next line of replies. Raises PeerUnavailable when it ends or takes too long."""
        assert self._process.stdout is not None
        source, limit = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([source], [], [], left)[0]:
                raise PeerUnavailable(f"vLLM gave no answer for {timeout:.0f} s: {self._last_error()}")
            chunk = os.read(source, 65536)
            if not chunk:
                raise PeerUnavailable(f"vLLM ended: {self._last_error()}")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_error(self) -> str:
        """The last line of its log that looks like an error, else the last line."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 20000))
        lines = [
            line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()
        ]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it printed nothing"])[-1][-300:]


def thread_binding(group: int) -> list[dict[str, Any]]:
    """Processes of a process group: name, threads, and the cores that each may use (Linux's /proc)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) != group:
                continue
            name = (folder / "comm").read_text().strip()
            cores = [_allowed_cores(task) for task in (folder / "task").iterdir()]
        except OSError:  # it ended meanwhile
            continue
        by_cores = {allowed: cores.count(allowed) for allowed in sorted(set(cores))}
        found.append({"process": name, "threads_by_cores": by_cores})
    return sorted(found, key=lambda entry: entry["process"])


def _allowed_cores(task: Path) -> str:
    for line in (task / "status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.split()[1]
    return "?"

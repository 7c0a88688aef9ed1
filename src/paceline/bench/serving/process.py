"""The server as a process of its own: started, watched from outside, and ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

from paceline.errors import PacelineError

START_S = 300.0
LISTENING = re.compile(r"listening on http://([\d.]+):(\d+)")
HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "paceline:kv_blocks_used",
        "paceline:recurrent_slots_used")  # fmt: skip
"""Metrics that are zero when nothing runs."""


class ServerFailedError(PacelineError):
    """The server did not start, or did not come to rest."""


class ServerProcess:
    """A `paceline serve` for a `with` block."""

    def __init__(self, arguments: Sequence[str], log: Path):
        """`arguments` follow `paceline serve`; `log` takes what the server says."""
        program = "from paceline.cli.launch import run; run()"
        self._command = [sys.executable, "-c", program, "serve", *arguments, "--port", "0"]
        self._log = log
        self.host, self.port = "", 0

    def __enter__(self) -> ServerProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_S
        while not (found := LISTENING.search(self._log.read_text(errors="replace"))):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                said = self._log.read_text(errors="replace").strip()[-500:]
                raise ServerFailedError(f"the server did not start: {said}")
            time.sleep(0.05)
        self.host, self.port = found[1], int(found[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def metrics(self) -> dict[str, float]:
        """Every metric's sum over its labels."""
        with urlopen(f"http://{self.host}:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        sums: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                sums[name] = sums.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return sums

    def at_rest(self, timeout: float = 60.0) -> dict[str, float]:
        """Wait until nothing is held any more; the metrics then, or as they are when the time is over."""
        deadline = time.monotonic() + timeout
        while any((found := self.metrics())[name] for name in HELD) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def unique_mib(self) -> float:
        """Memory that only the server's processes have and that no file holds too, in MiB.

        Clean pages of files are left out: whether they are private depends on who else reads the file.
        """
        total = 0
        for number in self._family():
            for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_Dirty"):
                    total += int(line.split()[1])
        return total / 1024

    def cpu_seconds(self) -> float:
        """Processor time of the server's processes since their start."""
        total = 0
        for number in self._family():
            fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def _family(self) -> list[int]:
        """The server's process and all below it."""
        found, new = [], [self._process.pid]
        while new:
            found += new
            new = [
                int(child)
                for parent in new
                for task in Path(f"/proc/{parent}/task").iterdir()
                for child in (task / "children").read_text().split()
            ]
        return found

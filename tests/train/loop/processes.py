"""Two processes that train together on the CPU, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.architecture.tree import ROOT


def run_two(program: str, *arguments: str) -> list[tuple[str, str]]:
    """Run `program` as ranks 0 and 1; what each said on stdout and stderr. Both must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=pipe, stderr=pipe, text=True)
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    return said

"""What a figure was measured on: without it a number means little."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from paceline import __version__


def environment() -> dict[str, Any]:
    """Processor, cores, threads, load and versions of this process, ready for JSON. Names no host or path."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load_1min": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "paceline": __version__,
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()

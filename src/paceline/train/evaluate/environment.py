"""What a report was measured with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any


def environment(device: str) -> dict[str, Any]:
    """Date, device, cores, threads and versions. Imports torch and transformers."""
    import torch
    import transformers

    from paceline import __version__

    on_gpu = device != "cpu" and torch.cuda.is_available()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if on_gpu else processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": {
            "paceline": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        found = []
    return next((name for name in found if name), platform.processor() or platform.machine())

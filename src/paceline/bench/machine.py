"""What a figure was measured on: processor, memory, threads, versions, settings, load."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("paceline", "torch", "transformers", "tokenizers", "safetensors", "numpy")
_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND", "MKL_NUM_THREADS",
             "LD_PRELOAD", "PACELINE_KERNELS", "PACELINE_POISON")  # fmt: skip
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")


def environment() -> dict[str, Any]:
    """The machine and the software, as far as they matter for speed. Imports torch."""
    import torch

    from paceline import kernels

    return {
        "date": now(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu_features": _features(),
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "memory_read_gb_per_s": round(memory_read_rate(), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
        "kernels": kernels.live(),
        "load_average": load(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nvidia_driver() -> str | None:
    """Version of the NVIDIA driver; None where it does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.split("\n")[0].strip() or None


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes; above our own busy threads, the machine is not quiet."""
    return [round(value, 2) for value in os.getloadavg()]


def memory_read_rate(mebibytes: int = 256, repeats: int = 5) -> float:
    """GB/s at which all threads together read memory: the bound of decoding at batch 1."""
    import torch

    block = torch.ones(mebibytes * 2**18, dtype=torch.float32)
    block.sum()
    best = min(_timed_sum(block) for _ in range(repeats))
    return block.nbytes / best / 1e9


def _timed_sum(block: Any) -> float:
    start = time.perf_counter()
    block.sum()
    return time.perf_counter() - start


def commit() -> str | None:
    """Commit of the checkout that runs, `+changes` if tracked files differ from it; None outside one."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_fields() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_name() -> str:
    fields = _cpu_fields()
    name = fields.get("model name") or platform.processor() or platform.machine()
    family = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return f"{name} ({', '.join(family)})" if family else name


def _features() -> list[str]:
    fields = _cpu_fields()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return [name for name in _FEATURES if name in flags]


def _caches() -> dict[str, str]:
    """Cache sizes of core 0, as the kernel reports them."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = (folder / "level").read_text().strip()
            found[f"L{level} {kind.lower()}"] = (folder / "size").read_text().strip()
        except OSError:
            continue
    return found

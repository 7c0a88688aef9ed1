"""Whether idle OpenMP threads spin or sleep: decided once, before torch loads the runtime.

Between two operators a spinning thread is back at work in a microsecond, a sleeping one in tens of them. But
a thread that spins on a core which other work needs holds everybody up: decoding has been seen 80 times
slower.
"""

from __future__ import annotations

import os
import sys
import time

BUSY_SHARE = 0.25
"""Of the machine's cores, taken by others, from which idle threads had better sleep."""
SAMPLE_S = 0.1
_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_chosen = False


def settle_threads() -> None:
    """Let idle threads sleep if other work keeps the cores busy now; the user's own setting stands."""
    global _chosen
    if "torch" in sys.modules or any(name in os.environ for name in _SETTINGS):
        return
    if busy_share() > BUSY_SHARE:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        _chosen = True


def threads_line() -> str:
    """What was decided, in words; empty where nothing was."""
    return "; other work keeps the cores busy, so idle threads sleep" if _chosen else ""


def busy_share() -> float:
    """Share of all cores' time that went to anything over the last tenth of a second; 0 where nobody
    tells."""
    before = _times()
    time.sleep(SAMPLE_S)
    after = _times()
    if before is None or after is None or after[1] <= before[1]:
        return 0.0
    return 1 - (after[0] - before[0]) / (after[1] - before[1])


def _times() -> tuple[int, int] | None:
    """Idle and total ticks of all cores since boot (Linux)."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return ticks[3] + ticks[4], sum(ticks)

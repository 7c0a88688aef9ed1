"""Shows a plan on the terminal."""

from __future__ import annotations

import json
from typing import Any

MEMORY = (
    "weights",
    "mtp_head",
    "drafter",
    "kv_blocks",
    "recurrent_slots",
    "checkpoints",
    "workspace",
    "total",
)


def show_plan(plan: dict[str, Any]) -> None:
    """Print a plan: settings with their origin, memory, kernels, the rule of drafts."""
    print("settings")
    for name, setting in plan["settings"].items():
        print(f"  {name.replace('_', '-'):34} {_value(setting['value']):28} {setting['from']}")
    print("model")
    for name, value in plan["model"].items():
        print(f"  {name:34} {_value(value)}")
    print(f"  {'deterministic':34} {_value(plan['deterministic'])}")
    print("memory")
    memory = plan["memory"]
    counts = {"kv_blocks": "num_blocks", "recurrent_slots": "num_slots", "checkpoints": "num_checkpoints"}
    for name in MEMORY:
        count = f"  ({memory[counts[name]]})" if name in counts else ""
        print(f"  {name.replace('_', ' '):34} {memory[name] / 2**20:12.1f} MiB{count}")
    print(f"  {'free now':34} {memory['free_now'] / 2**20:12.1f} MiB")
    if memory["shortage"]:
        print(f"  does not fit: {memory['shortage']}")
    print("kernels")
    for name, kind in plan["kernels"].items():
        print(f"  {name:34} {kind}")
    print(f"drafts: {plan['drafts']['rule']}")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""What taking drafts back costs in memory: a slot's bytes for window rows, against the recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from paceline.bench.rows import Row, judged, rounded
from paceline.bench.shapes import HYBRID_76M, QWEN_27B, HybridShape
from paceline.cache.tensors import CacheShape
from paceline.engine.describe import slot_bytes
from paceline.layers.rotary import RopeSpec
from paceline.models.spec import TargetSpec

NUM_DRAFTS = 10
TARGET = 0.15
_COUNTS = (1, 2, 4, 7, 10, 15, 31)


def target_spec(shape: HybridShape) -> TargetSpec:
    """The shape as the engine's own numbers, without weights."""
    return TargetSpec(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        num_layers=shape.layers,
        layer_types=tuple(shape.layer_types),
        num_heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope=RopeSpec(10_000_000.0, shape.head_dim // 4),
        num_key_heads=shape.key_heads,
        num_value_heads=shape.value_heads,
        key_dim=shape.delta_dim,
        value_dim=shape.delta_dim,
        conv_width=shape.conv_width,
        max_position=shape.max_position,
        rms_eps=1e-6,
        eos_ids=(),
        bos_id=None,
        dtype=torch.bfloat16,
        tied=False,
        mtp_layers=0,
    )


@dataclass(frozen=True, slots=True)
class Growth:
    """How the bytes of a slot grow with the drafts."""

    state: int
    per_row: int
    """Bytes that one more window row takes."""
    linear: bool
    """Whether every further row takes the same."""

    @property
    def holds_no_state(self) -> bool:
        """Whether a row takes far less than a state: no term in rows x state."""
        return self.linear and self.per_row * 16 < self.state


def growth(shape: HybridShape) -> Growth:
    """Measure the plan at several draft lengths."""
    plans = {n: plan(shape, n) for n in (0, *_COUNTS)}
    base = plans[0]["bytes_per_slot"]
    steps = {(plans[n]["bytes_per_slot"] - base) / n for n in _COUNTS}
    return Growth(base, int(max(steps)), len(steps) == 1)


def plan(shape: HybridShape, num_drafts: int) -> dict[str, Any]:
    """The memory part of the resolved plan for a shape and a draft length: bf16 rows, fp32 state."""
    resolved = CacheShape.of(target_spec(shape), block_size=64, num_drafts=num_drafts)
    return slot_bytes(resolved)


def measure(name: str, title: str) -> Row:
    """The row; also refuses a plan whose bytes grow with rows x state, for the other shape as well."""
    figures = plan(QWEN_27B, NUM_DRAFTS)
    share = figures["rollback_bytes_per_slot"] / figures["state_bytes_per_slot"]
    growths = {shape.name: growth(shape) for shape in (QWEN_27B, HYBRID_76M)}
    clean = all(found.linear for found in growths.values()) and growths[QWEN_27B.name].holds_no_state
    detail = {
        "shape": QWEN_27B.name,
        "num_speculative_tokens": NUM_DRAFTS,
        "rows_dtype": "bfloat16",
        **figures,
        "bytes_of_a_further_row": {name: found.per_row for name, found in growths.items()},
        "no_term_in_rows_times_state": clean,
        "snapshots_would_take": NUM_DRAFTS * figures["state_bytes_per_slot"],
    }
    met = bool(judged(share, TARGET, "<=")) and clean
    return Row(name, title, rounded(share), TARGET, "<=", met, reps=1, detail=detail)

"""What `--plan` says of drafters and heads beyond the loop's own plan: data, arithmetic, time before any run.

Sums of what is known beforehand, not a simulation. Where no run has measured a pace, time follows from the
rate of matrix products, measured here for some tenths of a second, and the share of it that training reaches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import as_plain
from paceline.models.spec import FULL_ATTENTION, SLIDING_ATTENTION, DrafterSpec
from paceline.train.data.batches import SampleBatches
from paceline.train.draft.stage import TargetFolder
from paceline.train.loop.memory import check_memory
from paceline.train.loop.plan import Frozen, estimate_memory, show_plan
from paceline.train.settings.optim import OptimSettings

_EFFICIENCY = {"cuda": 0.35, "cpu": 0.5}
"""Share of the measured matrix rate that is assumed; the first run replaces the guess by its pace."""
_LOGIT_COPIES = 4
"""fp32 tensors of the size of a chunk's logits that exist at once."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Floating-point operations of one batch."""

    target: float
    """The frozen target, forward."""
    trained: float
    """The trained module, forward and backward."""
    head: float
    """The output matrix: logits of the guesses, their gradient, and the teacher's."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.target + self.trained + self.head


def target_parameters(target: TargetFolder) -> int:
    """Numbers of the target's tensors, its multi-token head aside."""
    tensors = as_plain(Checkpoint.open(target.path)).tensors
    return sum(prod(info.shape) for name, info in tensors.items() if not name.startswith("mtp."))


def frozen_target(target: TargetFolder, compute: torch.dtype) -> Frozen:
    """The target in training form (fp32), and its output matrix once more in the compute dtype."""
    count, table = target_parameters(target), target.spec.vocab_size * target.spec.hidden_size
    return Frozen(count, 4 * count + (0 if compute is torch.float32 else table * compute.itemsize))


def arithmetic(
    target: TargetFolder, tokens: int, trained: int, trained_rows: int, guesses: int, *, teacher: bool
) -> Arithmetic:
    """Of a batch of `tokens` tokens; the module has `trained` parameters, run over `trained_rows` rows."""
    spec = target.spec
    table = spec.vocab_size * spec.hidden_size
    body = target_parameters(target) - table * (1 if spec.tied else 2)
    return Arithmetic(
        target=2.0 * body * tokens,
        trained=6.0 * trained * trained_rows,
        head=2.0 * table * guesses * (3 if teacher else 2),
    )


def logit_bytes(target: TargetFolder, rows: int) -> int:
    """Temporaries of a chunk of `rows` guesses."""
    return 4 * _LOGIT_COPIES * rows * target.spec.vocab_size


def check_room(
    target: TargetFolder, settings: OptimSettings, module: nn.Module, activations: int, device: torch.device
) -> None:
    """Before anything is loaded: warns or raises as `check_memory`."""
    frozen = frozen_target(target, settings.compute(device))
    check_memory(estimate_memory(settings, module, activations, device, frozen)["total"], device)


def shape_of(spec: DrafterSpec) -> dict[str, Any]:
    """A drafter by the keys of `DrafterShape`, nothing left open."""
    return {
        "num_hidden_layers": spec.num_layers,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.target_layer_ids),
        "layer_types": [FULL_ATTENTION if w is None else SLIDING_ATTENTION for w in spec.windows],
        "sliding_window": next((w for w in spec.windows if w is not None), None),
        "is_causal": spec.causal[0] if len(set(spec.causal)) == 1 else None,
        "rope_theta": spec.rope.theta,
        "max_position_embeddings": spec.max_position,
    }


def data_facts(batches: SampleBatches) -> dict[str, int]:
    """What an epoch holds."""
    return {
        "samples": batches.num_samples,
        "rows": batches.num_rows,
        "tokens": batches.num_tokens,
        "answer_tokens": batches.num_answer_tokens,
        "samples_cut_off": batches.num_truncated,
        "samples_left_out": batches.num_left_out,
    }


def with_estimate(
    plan: dict[str, Any],
    batches: SampleBatches,
    work: Arithmetic,
    batches_per_step: int,
    device: torch.device,
) -> dict[str, Any]:
    """The loop's plan with the data, the arithmetic of a step, and where it knows no time, an estimate."""
    plan = timed({**plan, "data": data_facts(batches)}, batches_per_step * work.total, device)
    plan["arithmetic"]["share_of_target"] = work.target / work.total
    return plan


def timed(plan: dict[str, Any], work: float, device: torch.device) -> dict[str, Any]:
    """A plan with the arithmetic of a step, `work` operations in one process, and where no run has measured a
    pace, an estimate of the time."""
    rate = matrix_rate(device, getattr(torch, plan["compute_dtype"]))
    plan = {**plan, "arithmetic": {"tflop_per_step": work / 1e12, "measured_tflops": rate / 1e12}}
    if plan["seconds"] is None and plan["steps"] is not None:
        seconds = work / (rate * _EFFICIENCY[device.type])
        plan["seconds"] = plan["steps"] * seconds
        share = f"{_EFFICIENCY[device.type]:.0%} of the matrix rate measured here"
        plan["seconds_from"] = f"an estimate: {seconds:.3g} s a step at {share}"
    return plan


def show_plans(plans: Mapping[str, dict[str, Any]], as_json: bool) -> None:
    """Print the plan of each stage; of a single one as the loop prints it."""
    first, *others = plans.values()
    if as_json:
        show_plan({**first, **{name: plans[name] for name in list(plans)[1:]}}, as_json)
        return
    for plan in (first, *others):
        show_plan(plan, as_json)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a square matrix product on `device`."""
    size = 8192 if device.type == "cuda" else 768
    a = torch.ones(size, size, device=device, dtype=dtype)
    b = torch.ones(size, size, device=device, dtype=dtype)

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    run(2)
    return 4 * 2.0 * size**3 / run(4)

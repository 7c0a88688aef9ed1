"""`--plan`: what a run will take, before anything is loaded: parameters, memory, tokens, arithmetic.

Sums of what is known beforehand, not a simulation. Time follows from the device's rate of matrix products,
measured here for some tenths of a second, and the share of it that training usually reaches.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import as_plain
from paceline.train.data.batches import SampleBatches
from paceline.train.draft.stage import TargetFolder
from paceline.train.settings.optim import OptimSettings

_STATE_BYTES = 16
"""Of a trained parameter: fp32 master, gradient, and AdamW's two moments."""
_EFFICIENCY = {"cuda": 0.35, "cpu": 0.5}
"""Share of the measured matrix rate that training reaches, as this repository's reports have it."""


@dataclass(frozen=True, slots=True)
class Work:
    """The arithmetic of a batch, in multiply-adds' floating-point operations."""

    target: float
    trained: float
    head: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.target + self.trained + self.head


def target_parameters(target: TargetFolder) -> int:
    """Numbers of the target's tensors, its head for several tokens aside."""
    tensors = as_plain(Checkpoint.open(target.path)).tensors
    return sum(prod(info.shape) for name, info in tensors.items() if not name.startswith("mtp."))


def batch_work(
    target: TargetFolder,
    trained: int,
    rows: int,
    length: int,
    trained_rows: int,
    guesses: int,
    *,
    teacher: bool,
) -> Work:
    """Of B rows of T tokens: the target forward, the module forward and backward over `trained_rows` rows,
    the output matrix for `guesses` rows (logits, their gradient, and the teacher's)."""
    tokens, spec = rows * length, target.spec
    table = spec.vocab_size * spec.hidden_size
    body = target_parameters(target) - table * (1 if spec.tied else 2)
    return Work(
        target=2.0 * body * tokens,
        trained=6.0 * trained * trained_rows,
        head=2.0 * table * guesses * (3 if teacher else 2),
    )


def memory_gib(
    target: TargetFolder, trained: int, width: int, rows: int, activations: int
) -> dict[str, float]:
    """Rough needs in GiB: the frozen target (fp32 masters), what is trained, activations that backward
    keeps, and `rows` rows of logits with what is made of them."""
    parts = {
        "target": 4 * target_parameters(target),
        "trained": _STATE_BYTES * trained,
        "activations": 2 * width * activations,
        "logits": 4 * 4 * rows * target.spec.vocab_size,
    }
    sizes = {name: round(value / 2**30, 3) for name, value in parts.items()}
    return {**sizes, "sum": round(sum(sizes.values()), 3)}


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


def time_facts(
    optim: OptimSettings, batches: SampleBatches, work: Work, device: torch.device, compute: torch.dtype
) -> dict[str, Any]:
    """Steps, and how long they will take by the measured rate; the target share of a step too."""
    rate = matrix_rate(device, compute)
    seconds = optim.gradient_accumulation * work.total / (rate * _EFFICIENCY[device.type])
    per_epoch = batches.steps_per_epoch() / optim.gradient_accumulation
    ends = [
        *([optim.max_steps] if optim.max_steps is not None else []),
        *([round(optim.epochs * per_epoch)] if optim.epochs is not None else []),
        *([round(optim.seconds / seconds)] if optim.seconds is not None else []),
    ]
    steps = max(1, min(ends))
    return {
        "steps": steps,
        "steps_per_epoch": round(per_epoch, 1),
        "tflop_per_step": optim.gradient_accumulation * work.total / 1e12,
        "share_of_target": round(work.target / work.total, 3),
        "measured_tflops": rate / 1e12,
        "seconds_per_step": seconds,
        "hours": steps * seconds / 3600,
    }


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

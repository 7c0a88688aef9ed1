"""Figures of drafter training on a GPU: how fast, and what a loss or a layout is worth at equal steps.

    python -m paceline.train.measure throughput --out FILE.json
    python -m paceline.train.measure compare --target MODEL --data SAMPLES --what losses --out FILE.json

`throughput` trains a five-layer drafter for a random target of Qwen3-4B's shape and counts the arithmetic
that a step must do against the rate of a large matrix product on the same device. `compare` trains one
drafter a variant on the same samples, steps and seed, then measures all on samples that none has seen; the
guesses follow the target's own answer there, as at serving.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from paceline.errors import explained
from paceline.layers.rotary import RopeSpec
from paceline.models.dense_config import DenseSpec
from paceline.models.spec import DrafterSpec
from paceline.train.data.batches import SampleBatches
from paceline.train.data.shards import Sample, read_samples
from paceline.train.draft.features import OnlineFeatures
from paceline.train.draft.initial import new_drafter
from paceline.train.draft.losses import LossShape
from paceline.train.draft.shape import paper_gamma
from paceline.train.draft.task import DrafterTask
from paceline.train.evaluate.environment import environment
from paceline.train.loop.distributed import Place
from paceline.train.loop.step import Stepper
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.dense import Dense
from paceline.train.modules.drafter import Drafter
from paceline.train.modules.load import load_train_target
from paceline.train.settings.optim import OptimSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HELD_OUT = 400
"""Samples at the beginning of a folder that `compare` measures on and never trains on."""


def qwen3_4b() -> DenseSpec:
    """The sizes of Qwen3-4B."""
    return DenseSpec(
        hidden_size=2560, intermediate_size=9728, vocab_size=151936, num_layers=36,
        layer_types=("full_attention",) * 36, num_heads=32, kv_heads=8, head_dim=128,
        rope=RopeSpec(1e6, 128), max_position=40960, rms_eps=1e-6, eos_ids=(151645,), bos_id=None,
        dtype=torch.bfloat16, tied=True, mtp_layers=0, head_norms=True,
    )  # fmt: skip


def drafter_spec(
    target: TrainTarget, layers: int, block: int, mask: int, taps: tuple[int, ...],
    heads: tuple[int, int, int], inner: int, windows: tuple[int | None, ...] | None = None,
) -> DrafterSpec:  # fmt: skip
    """A drafter over `target`; heads: query heads, key heads, their width."""
    windows = windows or (None,) * layers
    return DrafterSpec(
        hidden_size=target.hidden_size, intermediate_size=inner, vocab_size=target.vocab_size,
        num_layers=layers, num_heads=heads[0], kv_heads=heads[1], head_dim=heads[2],
        rope=RopeSpec(1e6, heads[2]), max_position=target.max_position, rms_eps=1e-6, block_size=block,
        mask_token_id=mask, target_layer_ids=taps, windows=windows,
        causal=tuple(w is not None for w in windows), dtype=torch.bfloat16,
    )  # fmt: skip


def matrix_rate(size: int = 8192, repeats: int = 20) -> float:
    """FLOP/s of a bf16 matrix product of this size on random data, median of `repeats`."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for _ in range(5):
        a @ b
    for first, second in events:
        first.record()
        a @ b
        second.record()
    torch.cuda.synchronize()
    times = sorted(first.elapsed_time(second) for first, second in events)
    return 2 * size**3 / (times[repeats // 2] / 1e3)


def step_flops(target: DenseSpec, d: DrafterSpec, rows: int, length: int, anchors: int) -> dict[str, float]:
    """Multiplications and additions that one step must do, by part; a backward pass counts twice a forward
    one, once where inputs need no gradient."""
    tokens, blocks = rows * length, rows * anchors * d.block_size
    width = target.num_heads * target.head_dim
    layer = target.hidden_size * (2 * width + 2 * target.kv_heads * target.head_dim)
    layer += 3 * target.hidden_size * target.intermediate_size
    seen = target.num_layers * 2 * width * length  # causal: half of length, two products
    h, kv, q = d.hidden_size, d.kv_heads * d.head_dim, d.num_heads * d.head_dim
    block_row = d.num_layers * (2 * h * (2 * q + 2 * kv) + 6 * h * d.intermediate_size)
    attention = d.num_layers * 2 * q * length * blocks  # half of the row's context on average, two products
    context = 2 * h * h * len(d.target_layer_ids) * 2 + d.num_layers * 2 * h * 2 * kv * 3
    guesses = rows * anchors * (d.block_size - 1)
    return {
        "target": tokens * (2 * target.num_layers * layer + seen),
        "context": float(tokens * context),
        "blocks": 3.0 * (blocks * block_row + attention),
        "head": 2.0 * 2 * guesses * d.vocab_size * h,
    }


def _task(
    target: TrainTarget, drafter: Drafter, batches: SampleBatches, loss: LossShape, anchors: int
) -> DrafterTask:
    online = OnlineFeatures(target, drafter.spec.target_layer_ids, hidden=loss.kind == "kl")
    return DrafterTask(
        drafter, target, batches, online, loss, num_anchors=anchors, head_rows=8192,
        device=DEVICE, compute=torch.bfloat16, export=lambda module, folder: None,
    )  # fmt: skip


def _random_samples(count: int, length: int, vocab: int) -> Iterator[Sample]:
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
        yield Sample(str(i), None, False, ids[:128], ids[128:], "stop")


def throughput(rows: int = 8, length: int = 3072, anchors: int = 512, steps: int = 8) -> dict[str, Any]:
    """Time of training steps on random weights and tokens; the paper's length and anchors."""
    torch.manual_seed(0)
    spec = qwen3_4b()
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        target = Dense(spec, torch.bfloat16).requires_grad_(False)
        torch.set_default_dtype(torch.float32)
    for p in target.parameters():
        if p.dim() > 1:
            p.normal_(0, 0.02)
    d = drafter_spec(target, 5, 16, 151669, (1, 9, 17, 25, 33), (32, 8, 128), 9728)
    samples = _random_samples(rows * 2, length, 150000)
    batches = SampleBatches(samples, rows=rows, length=length, pad_id=0, seed=0)
    task = _task(target, new_drafter(d, 0), batches, LossShape("dpace", None, 0.5), anchors)
    optim = OptimSettings(max_steps=1000, compile=True)
    stepper = Stepper(task, optim, Place(DEVICE))
    begin = time.perf_counter()
    for step in range(3):
        stepper.step(step, 1e-5)
    torch.cuda.synchronize()
    warm_up, begin = time.perf_counter() - begin, time.perf_counter()
    for step in range(3, 3 + steps):
        stepper.step(step, 1e-5)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / steps
    flops, rate = step_flops(spec, d, rows, length, anchors), matrix_rate()
    return {
        "shape": {"rows": rows, "length": length, "anchors": anchors, "block_size": 16, "layers": 5},
        "seconds_per_step": round(seconds, 4), "tokens_per_second": round(rows * length / seconds),
        "warm_up_seconds": round(warm_up, 1), "timed_steps": steps,
        "tflop_per_step": {name: round(value / 1e12, 2) for name, value in flops.items()},
        "matrix_tflops": round(rate / 1e12, 1),
        "share_of_matrix_rate": round(sum(flops.values()) / seconds / rate, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }  # fmt: skip


Variant = tuple[LossShape, int, tuple[int | None, ...] | None]
"""Loss, number of layers, windows."""


def variants(what: str, block: int) -> dict[str, Variant]:
    """What is compared, by name."""
    gamma = paper_gamma(block)
    dpace = LossShape("dpace", None, 0.5)
    if what == "losses":
        decay, kl = LossShape("decay", gamma, 0.5), LossShape("kl", gamma, 0.5)
        return {"dpace": (dpace, 4, None), "decay": (decay, 4, None), "kl": (kl, 4, None)}
    return {"8 full": (dpace, 8, None), "5 sliding + 1 full": (dpace, 6, (*(512,) * 5, None))}


def compare(
    target_path: str, data: Path, what: str, steps: int, mask: int, rows: int, length: int, anchors: int
) -> dict[str, Any]:
    """Held-out acceptance of each variant after `steps` steps."""
    target = load_train_target(target_path, DEVICE, torch.bfloat16)
    n, size = target.num_layers, 8
    taps = tuple(sorted({round(1 + i * (n - 4) / 4) for i in range(5)}))
    samples = list(read_samples(data))
    trained = SampleBatches(samples[HELD_OUT:], rows=rows, length=length, pad_id=0, seed=0)
    unseen = SampleBatches(islice(samples, HELD_OUT), rows=rows, length=length, pad_id=0, seed=0)
    found: dict[str, Any] = {}
    for name, (loss, layers, windows) in variants(what, size).items():
        torch.manual_seed(0)
        spec = drafter_spec(target, layers, size, mask, taps, (9, 3, 64), 1536, windows)
        drafter = new_drafter(spec, 0)
        task = _task(target, drafter, trained, loss, anchors)
        gpu = DEVICE.type == "cuda"
        optim = OptimSettings(max_steps=steps, optimizer="muon", learning_rate=2e-3, compile=gpu)
        found[name] = _train(task, optim, steps)
        judge = _task(target, drafter, unseen, LossShape("dpace", None, 0.5), anchors)
        found[name] |= _judge(judge, unseen.steps_per_epoch())
        found[name]["parameters"] = sum(p.numel() for p in drafter.parameters())
        print(name, found[name], flush=True)
        torch.compiler.reset()
    return {"target": target_path, "rows": rows, "length": length, "anchors": anchors, "block_size": size,
            "steps": steps, "samples": len(samples), "variants": found}  # fmt: skip


def _train(task: DrafterTask, optim: OptimSettings, steps: int) -> dict[str, float]:
    from paceline.train.loop.schedule import learning_rate

    stepper, warm = Stepper(task, optim, Place(DEVICE)), min(20, steps // 2)
    for step in range(steps):
        if step == warm:
            stepper.glance()
            begin = time.perf_counter()
        stepper.step(step, learning_rate(step, steps, optim, 0))
    values = stepper.take()  # waits for the device
    return {
        "seconds_per_step": round((time.perf_counter() - begin) / (steps - warm), 4),
        "loss": round(values["loss"], 3),
    }


@torch.no_grad()
def _judge(task: DrafterTask, steps: int) -> dict[str, float]:
    generator, sums = torch.Generator(DEVICE).manual_seed(7), torch.zeros(3, device=DEVICE)
    for step in range(steps):
        _, metrics = task.loss(task.batch(step, 0, 1), generator)
        right = metrics["accuracy"]
        sums += torch.stack([metrics["acceptance"], right, torch.ones_like(right)])
    acceptance, accuracy, count = sums.tolist()
    return {"acceptance_length": round(acceptance / count, 3), "accuracy": round(accuracy / count, 4)}


@explained
def main(argv: list[str] | None = None) -> None:
    """Print and write the figures."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("figure", choices=["throughput", "compare"])
    p.add_argument("--target")
    p.add_argument("--data", type=Path)
    p.add_argument("--what", choices=["losses", "layouts"], default="losses")
    p.add_argument("--mask", type=int, default=16, help="id of the mask row")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--rows", type=int, default=32)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--anchors", type=int, default=192)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    shape = (a.rows, a.length, a.anchors)
    if a.figure == "throughput":
        figures = throughput()
    else:
        figures = compare(a.target, a.data, a.what, a.steps, a.mask, *shape)
    report = {"figure": a.figure, "machine": environment(DEVICE.type), **figures}
    a.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    sys.exit(main())

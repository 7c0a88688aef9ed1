"""A hybrid folder out of a dense one, to be trained further: `init_from` of `paceline train target`.

    python -m paceline.train.targets.convert DENSE OUT --layers 16 --interval 4 --vocab 8192

See `train.modules.convert` for what is kept and `train.modules.vocabulary` for the smaller vocabulary.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from paceline.errors import UnsupportedModelError, explained
from paceline.train.modules.convert import convert, hybrid_spec
from paceline.train.modules.dense import Dense
from paceline.train.modules.hybrid import Hybrid
from paceline.train.modules.load import load_train_target
from paceline.train.modules.vocabulary import truncated
from paceline.train.targets.export import export_target, new_tokenizer
from paceline.train.targets.tokenizer import eos_ids


def convert_folder(
    source: Path, out: Path, layers: int, interval: int, vocab: int, positions: int, seed: int = 0
) -> Hybrid:
    """Write the hybrid; returns it. Raises: UnsupportedModelError where `source` is no dense decoder."""
    dense = load_train_target(source)
    if not isinstance(dense, Dense):
        raise UnsupportedModelError(f"{source} is a hybrid already: give a llama, qwen2 or qwen3 folder")
    torch.manual_seed(seed)
    tokenizer = truncated(source / "tokenizer.json", vocab)
    hybrid = Hybrid(hybrid_spec(dense, layers, interval, vocab, positions, eos_ids(tokenizer)))
    convert(dense, hybrid)
    export_target(hybrid, new_tokenizer(tokenizer, positions), out)
    return hybrid


@explained
def main(argv: list[str] | None = None) -> None:
    """Convert the folder named on the command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("dense", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--interval", type=int, default=4, help="every so many layers one keeps its attention")
    p.add_argument("--vocab", type=int, default=8192, help="ids that are kept")
    p.add_argument("--positions", type=int, default=4096, help="longest sequence")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args(argv)
    hybrid = convert_folder(a.dense, a.out, a.layers, a.interval, a.vocab, a.positions, a.seed)
    print(f"{a.out}: {sum(w.numel() for w in hybrid.parameters()):,} parameters")


if __name__ == "__main__":
    sys.exit(main())

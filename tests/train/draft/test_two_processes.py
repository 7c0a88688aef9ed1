"""Drafters and heads that two processes train learn what one with two batches a step learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.train.loop.resume import load_newest
from paceline.train.loop.trainer import Task, Trainer
from paceline.train.modules.load import load_train_target
from tests import tiny
from tests.train.draft.harness import SLIDING, make_task, packed
from tests.train.head.test_served import head_task
from tests.train.loop.processes import run_two
from tests.train.loop.tiny import curve, settings

KINDS = ("drafter", "head")
STEPS = 4
PROGRAM = """
import sys
from pathlib import Path
from paceline.train.loop.distributed import joined
from paceline.train.loop.trainer import Trainer
from tests.train.draft.test_two_processes import KINDS, chosen, task

folder, out = map(Path, sys.argv[1:])
with joined("cpu") as place:
    for parallel in ("ddp", "fsdp"):
        for kind in KINDS:
            made = task(kind, folder)
            Trainer(made, chosen(parallel=parallel), out / f"{parallel}-{kind}", place).run()
"""


def task(kind: str, folder: Path) -> Task:
    """The task of a command, with the seeds that every process shares; rows of unequal answers."""
    torch.manual_seed(1)
    batches = packed(rows=1, length=40, count=9)
    if kind == "head":
        return head_task(folder, batches)
    return make_task(folder, load_train_target(folder), SLIDING, batches=batches)


def chosen(**changes: object):
    return settings(max_steps=STEPS, log_every=1, save_every=0, **changes)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tiny.make_target(tmp_path_factory.mktemp("target"), "tied")
    out = tmp_path_factory.mktemp("two")
    run_two(PROGRAM, str(folder), str(out))
    return folder, out


@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_are_those_of_one_process(two: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    folder, out = two
    Trainer(task(kind, folder), chosen(gradient_accumulation=2), tmp_path, "cpu").run()
    expected, mine = torch.tensor(curve(tmp_path)), load_newest(tmp_path / "checkpoints")
    assert expected.shape == (STEPS, 3) and mine is not None
    for parallel in ("ddp", "fsdp"):
        seen = torch.tensor(curve(out / f"{parallel}-{kind}"))
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
        theirs = load_newest(out / f"{parallel}-{kind}" / "checkpoints")
        assert theirs is not None
        for name, tensor in mine["module"].items():
            torch.testing.assert_close(theirs["module"][name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_a_step_is_another_curve(two: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    """The test above tells something: half of the batches give other losses."""
    folder, out = two
    Trainer(task(kind, folder), chosen(), tmp_path, "cpu").run()
    assert abs(curve(tmp_path)[0][1] - curve(out / f"ddp-{kind}")[0][1]) > 1e-3

"""Stages, and what a kill in either of them leaves: the run goes on to the same drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.models.checkpoint import Checkpoint
from paceline.train.draft.task import DraftBatch, DrafterTask
from tests.train.draft.test_command import losses, run, write_settings


def two_stages(folder: Path, out: str) -> Path:
    optim = {"max_steps": 3, "log_every": 1, "save_every": 1, "learning_rate": 0.003}
    stage = {
        "data": {"path": str(folder / "data"), "rows": 1, "length": 64},
        "num_anchors": 9,
        "optim": optim,
    }
    return write_settings(folder, out=str(folder / out), optim=optim, long_context=stage)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoint.open(folder / "last")
    return {name: checkpoint.weight(name) for name in checkpoint.tensors}


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_killed_run_goes_on_to_the_same_drafter(
    tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(two_stages(tmp_path, "whole"))
    count, batch = 0, DrafterTask.batch

    def killed(task: DrafterTask, *place: Any) -> DraftBatch:
        nonlocal count
        count += 1
        if count == killed_at + 1:
            raise SystemError("killed")
        return batch(task, *place)

    with monkeypatch.context() as patch, pytest.raises(SystemError):
        patch.setattr(DrafterTask, "batch", killed)
        run(two_stages(tmp_path, "killed"))
    run(two_stages(tmp_path, "killed"), resume=True, force=False)
    for stage in ("", "long_context"):
        whole, again = tmp_path / "whole" / stage, tmp_path / "killed" / stage
        assert losses(again) == losses(whole) and len(losses(whole)) == 3
        assert all(torch.equal(value, weights(again)[name]) for name, value in weights(whole).items())
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "whole" / "long_context")
    assert not torch.equal(first["fc.weight"], second["fc.weight"]), "the second stage trains on"

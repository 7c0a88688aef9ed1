"""Two processes with one batch each learn what one process with two batches a step does."""

from __future__ import annotations

import pytest
import torch

from paceline.train.loop.resume import load_newest
from paceline.train.loop.trainer import Trainer
from tests.train.loop.processes import run_two
from tests.train.loop.tiny import TinyTask, curve, settings

PROCESS = """
import os, signal, sys
from pathlib import Path
from paceline.train.loop.distributed import joined
from paceline.train.loop.trainer import Trainer
from tests.train.loop.tiny import TinyTask, settings

out = Path(sys.argv[1])
with joined("cpu") as place:
    assert (place.world, place.device.type) == (2, "cpu")
    for parallel in ("ddp", "fsdp"):
        for optimizer in ("adamw", "muon"):
            task = TinyTask(scores=(1.0, 2.0, 3.0))
            chosen = settings(optimizer=optimizer, parallel=parallel, eval_every=5, seed=3)
            outcome = Trainer(task, chosen, out / f"{parallel}-{optimizer}", place).run()
            assert task.steps_seen == list(range(12))
            assert outcome.evaluation == ({"score": 3.0} if place.first else {})

    class Stopped(TinyTask):
        def loss(self, batch, generator):
            if place.rank == 1 and len(self.steps_seen) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return super().loss(batch, generator)

    try:
        Trainer(Stopped(), settings(seed=3), out / "stopped", place).run()
    except KeyboardInterrupt:
        trainer = Trainer(TinyTask(), settings(seed=3), out / "stopped", place, resume=True)
        assert trainer.done == 6
        trainer.run()
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    said = run_two(PROCESS, str(out))
    return out, said


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_curve_is_that_of_one_process(two, tmp_path, parallel, optimizer):
    chosen = settings(optimizer=optimizer, gradient_accumulation=2, seed=3)
    one, shared = tmp_path, two[0] / f"{parallel}-{optimizer}"
    Trainer(TinyTask(), chosen, one, "cpu").run()
    expected, seen = curve(one), curve(shared)
    assert [line[0] for line in seen] == [3, 6, 9, 12]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert expected[0] != expected[1]
    theirs, ours = (torch.load(out / "last" / "model.pt") for out in (shared, one))
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_what_two_have_saved_one_can_resume(two, tmp_path, parallel):
    state = load_newest(two[0] / f"{parallel}-muon" / "checkpoints")
    Trainer(TinyTask(), settings(optimizer="muon", gradient_accumulation=2, seed=3), tmp_path, "cpu").run()
    mine = load_newest(tmp_path / "checkpoints")
    for name, tensor in mine["module"].items():
        torch.testing.assert_close(state["module"][name], tensor, rtol=1e-3, atol=1e-4)
    for name, values in mine["optimizer"].items():
        assert state["optimizer"][name].keys() == values.keys()
        for key, tensor in values.items():
            torch.testing.assert_close(state["optimizer"][name][key], tensor, rtol=1e-2, atol=1e-4)


def test_a_signal_to_one_stops_both_where_they_log_and_both_resume(two):
    out, ((_, first), _) = two
    assert "stopped and saved at step 6" in first
    assert curve(out / "stopped") == curve(out / "ddp-adamw")


def test_only_the_first_process_writes_and_talks(two):
    out, ((_, first), (_, second)) = two
    assert "step 12/12" in first and "step" not in second
    assert len(curve(out / "ddp-adamw")) == 4, "each line once"
    assert (out / "fsdp-muon" / "best" / "model.pt").is_file()

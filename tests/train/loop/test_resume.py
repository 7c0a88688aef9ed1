"""A run that is killed and resumed is the run that was not: same curve, same weights, to the last bit."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError

from paceline.errors import CapacityError
from paceline.train.loop import resume
from paceline.train.loop.outputs import Outputs
from paceline.train.loop.resume import checkpoint_steps, load_newest, replace_folder, save_checkpoint
from paceline.train.loop.trainer import Trainer
from tests.architecture.tree import ROOT
from tests.train.loop.tiny import TinyTask, curve, settings

KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.train.loop.trainer import Trainer
from tests.train.loop.tiny import TinyTask, settings

class Killed(TinyTask):
    def loss(self, batch, generator):
        if len(self.steps_seen) == 17:  # the first of two micro-batches of step 8
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(batch, generator)

Trainer(Killed(), settings(optimizer="muon", gradient_accumulation=2), Path(sys.argv[1]), "cpu").run()
"""


def weights(out):
    return torch.load(out / "last" / "model.pt")


def test_a_killed_process_is_resumed_to_the_same_curve_and_weights(tmp_path):
    chosen = settings(optimizer="muon", gradient_accumulation=2)
    Trainer(TinyTask(), chosen, tmp_path / "whole", "cpu").run()
    killed = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    result = subprocess.run([sys.executable, "-c", KILLED, str(killed)], env=environment, check=False)
    assert result.returncode == -signal.SIGKILL
    assert checkpoint_steps(killed / "checkpoints") == [4, 8]
    assert curve(killed) == curve(tmp_path / "whole")[:2], "it died between two logs"
    Trainer(TinyTask(), chosen, killed, "cpu", resume=True).run()
    assert curve(killed) == curve(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(killed)[name]), name


@pytest.mark.parametrize(
    "spoil",
    [
        lambda place: (place / "state.pt").write_bytes(b""),
        lambda place: (place / "state.pt").write_bytes((place / "state.pt").read_bytes()[:-40]),
        lambda place: flip(place / "state.pt"),
        lambda place: (place / "state.json").unlink(),
        lambda place: (place / "state.json").write_text("{}"),
    ],
    ids=["empty", "short", "one bit", "no sums", "other sums"],
)
def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(tmp_path, spoil):
    Trainer(TinyTask(), settings(), tmp_path, "cpu").run()
    before, last = curve(tmp_path), weights(tmp_path)
    spoil(tmp_path / "checkpoints" / "step-12")
    (tmp_path / "run.json").write_text(without_end((tmp_path / "run.json").read_text()))
    with pytest.warns(UserWarning, match=r"step-12 is damaged and left aside"):
        trainer = Trainer(TinyTask(), settings(), tmp_path, "cpu", resume=True)
    assert trainer.done == 8
    trainer.run()
    assert curve(tmp_path) == before
    assert all(torch.equal(tensor, weights(tmp_path)[name]) for name, tensor in last.items())
    assert load_newest(tmp_path / "checkpoints")["step"] == 12, "written anew over the damaged one"


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def without_end(text):
    return json.dumps({k: v for k, v in json.loads(text).items() if k != "finished"})


def test_all_damaged_begins_at_the_beginning(tmp_path):
    Trainer(TinyTask(), settings(), tmp_path, "cpu").run()
    before = curve(tmp_path)
    for step in (8, 12):
        flip(tmp_path / "checkpoints" / f"step-{step}" / "state.pt")
    with pytest.warns(UserWarning) as warned:
        trainer = Trainer(TinyTask(), settings(), tmp_path, "cpu", resume=True)
    *damaged, last = [str(w.message) for w in warned]
    assert [text.split()[0].rpartition("/")[2] for text in damaged] == ["step-12", "step-8"]
    assert last == f"{tmp_path} has no sound checkpoint left: begins at step 0"
    assert trainer.done == 0
    trainer.run()
    assert curve(tmp_path) == before


def test_a_death_while_writing_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 4, {"x": torch.arange(3)}, keep=2)

    def torn(value, file):
        file.write(b"half of")
        raise SystemExit

    monkeypatch.setattr(resume.torch, "save", torn)
    with pytest.raises(SystemExit):
        save_checkpoint(tmp_path, 8, {"x": torch.arange(3)}, keep=2)
    monkeypatch.undo()
    assert checkpoint_steps(tmp_path) == [4] and load_newest(tmp_path)["step"] == 4
    save_checkpoint(tmp_path, 8, {"x": torch.arange(4)}, keep=2)
    assert load_newest(tmp_path)["x"].tolist() == [0, 1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-4", "step-8"]


def test_a_full_disk_is_told_in_our_words_and_leaves_nothing_behind(tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "checkpoints", 4, {"x": torch.arange(3)}, keep=2)
    (tmp_path / "checkpoints" / ".step-3.unfinished").mkdir()

    def fails(value, file):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 6 vs 5")

    monkeypatch.setattr(resume.torch, "save", fails)
    with pytest.raises(CapacityError, match=r"step-8 cannot be written, perhaps the disk is full: make room"):
        save_checkpoint(tmp_path / "checkpoints", 8, {}, keep=2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-4"]
    monkeypatch.undo()

    monkeypatch.setattr(resume.os, "fsync", raises(OSError(errno.ENOSPC, "No space left on device")))
    words = r"step-8 cannot be written, .*make room, then --resume \(No space left on device\)"
    with pytest.raises(CapacityError, match=words):
        save_checkpoint(tmp_path / "checkpoints", 8, {}, keep=2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-4"]
    monkeypatch.undo()

    class Full(TinyTask):
        def export(self, folder):
            raise SafetensorError("Error while serializing: I/O error: No space left on device")

    with pytest.raises(CapacityError, match=r"last cannot be written, perhaps the disk is full"):
        Trainer(Full(), settings(), tmp_path / "run", "cpu").run()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock",
        "checkpoints",
        "metrics.jsonl",
        "run.json",
    ]


def raises(error):
    def fails(*_, **__):
        raise error

    return fails


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device"),
    shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]),
])  # fmt: skip
def test_a_best_that_the_disk_does_not_take_is_named(tmp_path, monkeypatch, error):
    outputs = Outputs(tmp_path, TinyTask(scores=[1.0]))
    outputs.export()
    monkeypatch.setattr("paceline.train.loop.outputs.shutil.copytree", raises(error))
    with pytest.raises(CapacityError, match=r"best cannot be written, .*No space left on device"):
        outputs.evaluate(1)


def test_another_fault_of_the_system_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(resume.torch, "save", raises(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(PermissionError):
        save_checkpoint(tmp_path, 8, {}, keep=2)


def test_only_the_newest_are_kept(tmp_path):
    for step in (9, 10, 100, 11):
        save_checkpoint(tmp_path, step, {}, keep=2)
    assert checkpoint_steps(tmp_path) == [11, 100]


def test_no_checkpoint_is_none(tmp_path):
    assert load_newest(tmp_path / "nowhere") is None


def test_replacing_a_folder_takes_its_contents_away(tmp_path):
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    replace_folder(tmp_path / "new", tmp_path / "place")
    assert [p.name for p in tmp_path.iterdir()] == ["place"]
    assert [p.name for p in (tmp_path / "place").iterdir()] == ["new"]

"""A plan tells what a run will be without loading anything."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from paceline.cache.memory import memory_budget, total_memory
from paceline.errors import CapacityError
from paceline.train.loop import memory
from paceline.train.loop.plan import Frozen, Work, last_pace, layer_activations, make_plan, show, show_plan
from paceline.train.loop.trainer import Trainer
from tests.train.loop.tiny import Net, TinyTask, settings

WORK = Work(tokens=12, activations=1000, steps_per_epoch=6)
EMBEDDING, MATRICES, VECTORS = 11 * 8, 8 * 12 + 12 * 11, 12 + 12 + 11


def plan(out, module=None, device="cpu", frozen=None, **changes):
    chosen = settings(**changes)
    config = {"optim": {"max_steps": chosen.max_steps}}
    return make_plan(
        "train tiny", config, chosen,
        module=module or Net(), work=WORK, out=out, device=torch.device(device), frozen=frozen,
    )  # fmt: skip


def test_parameters_memory_and_tokens(tmp_path):
    module = Net()
    module.norm.requires_grad_(False)
    made = plan(tmp_path, module, frozen=Frozen(50, 200), optimizer="muon", gradient_accumulation=2)
    trained = EMBEDDING + MATRICES + 11
    assert made["parameters"] == {"trained": trained, "frozen": 50 + 24}
    # AdamW keeps two numbers a parameter, Muon one.
    optimizer = 4 * (2 * (trained - MATRICES) + MATRICES)
    expected = {
        "masters": 4 * trained, "gradients": 4 * trained, "optimizer": optimizer, "cast_weights": 0,
        "frozen_weights": 200 + 4 * 24, "activations": 1000,
    }  # fmt: skip
    assert made["memory"] == {**expected, "total": sum(expected.values())}
    assert (made["steps"], made["steps_per_epoch"], made["tokens_per_step"]) == (12, 3, 24)
    assert made["tokens"] == 12 * 24


def room(monkeypatch, free, total):
    """A machine of so many bytes."""
    monkeypatch.setattr(memory, "memory_budget", lambda device, share: free)
    monkeypatch.setattr(memory, "total_memory", lambda device: total)


CPU, GPU = torch.device("cpu"), torch.device("cuda")
GIB = 2**30


@pytest.mark.parametrize("device", [CPU, GPU])
def test_what_fits_says_nothing_and_what_is_not_free_warns(monkeypatch, device):
    room(monkeypatch, 4 * GIB, 9 * GIB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.check_memory(4 * GIB, device)
    words = (
        rf"about 5\.0 GiB of memory, {device} has 4\.0 GiB of 9\.0 GiB free: free memory, or lower the rows"
    )
    with pytest.warns(UserWarning, match=words):
        memory.check_memory(5 * GIB, device)
    monkeypatch.setenv("RANK", "1")
    memory.check_memory(5 * GIB, device)  # said once


@pytest.mark.parametrize("device, most", [(CPU, 9.0), (GPU, 13.5)])
def test_what_no_memory_holds_is_refused(monkeypatch, device, most):
    room(monkeypatch, 4 * GIB, 9 * GIB)
    words = f"{device} has 9\\.0 GiB in all: lower the rows of a batch"
    with pytest.warns(UserWarning):
        memory.check_memory(int(most * GIB), device)
    with pytest.raises(CapacityError, match=words):
        memory.check_memory(int(most * GIB) + 1, device)


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    room(monkeypatch, 9 * GIB, 9 * GIB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory.shortage(5 * GIB, GPU) is None
    with pytest.raises(CapacityError, match=r"about 10\.0 GiB"):
        memory.check_memory(5 * GIB, CPU)


def test_a_plan_says_what_does_not_fit(tmp_path, monkeypatch, capsys):
    assert plan(tmp_path)["shortage"] is None
    room(monkeypatch, 10, 20)
    made = plan(tmp_path)
    show_plan(made, as_json=False)
    assert f"  does not fit: {made['shortage']}" in capsys.readouterr().out.splitlines()


def test_the_machine_has_more_than_is_free():
    assert total_memory("cpu") >= memory_budget("cpu", share=1.0) > 0


def test_the_memory_of_the_optimizer_is_what_it_really_holds(tmp_path):
    for kind in ("adamw", "muon"):
        trainer = Trainer(TinyTask(), settings(max_steps=1, optimizer=kind), tmp_path / kind, "cpu")
        trainer.run()
        state = trainer.stepper.optimizer.state()
        held = sum(t.nbytes for values in state.values() for key, t in values.items() if key != "step")
        assert plan(tmp_path, optimizer=kind)["memory"]["optimizer"] == held


def test_several_processes_share_or_repeat(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    alone = 4 * (EMBEDDING + MATRICES + VECTORS)
    ddp = plan(tmp_path, max_steps=None, epochs=1)
    assert (ddp["processes"], ddp["steps"], ddp["tokens_per_step"]) == (2, 3, 24)
    assert ddp["memory"]["masters"] == alone
    fsdp = plan(tmp_path, parallel="fsdp")["memory"]
    assert fsdp["masters"] == alone // 2 and fsdp["cast_weights"] == alone


def test_bf16_keeps_a_copy_of_the_weights(tmp_path, monkeypatch):
    room(monkeypatch, 2**30, 2**30)
    made = plan(tmp_path, device="cuda", compute_dtype="auto")
    assert made["compute_dtype"] == "bfloat16"
    assert made["memory"]["cast_weights"] == 2 * (EMBEDDING + MATRICES + VECTORS)


def test_the_time_is_a_budget_a_measured_pace_or_unknown(tmp_path):
    assert plan(tmp_path)["seconds"] is None
    budget = plan(tmp_path, seconds=60.0)
    assert (budget["seconds"], budget["steps"], budget["tokens"]) == (60.0, None, None)
    Trainer(TinyTask(), settings(), tmp_path, "cpu").run()
    pace = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["seconds_per_step"]
    assert last_pace(tmp_path) == pace
    assert plan(tmp_path, max_steps=100)["seconds"] == pytest.approx(100 * pace)


def test_a_plan_in_words_and_for_programs(tmp_path, capsys):
    made = plan(tmp_path, frozen=Frozen(1_000_000, 2 * 2**30))
    show_plan(made, as_json=True)
    assert json.loads(capsys.readouterr().out) == made
    show_plan(made, as_json=False)
    text = capsys.readouterr().out
    for part in ("optim.max_steps", "1,000,000", "2.000 GiB", "float32", "144", "unknown: no run in"):
        assert part in text


def test_only_the_first_process_prints(monkeypatch, capsys, tmp_path):
    show({"a": {"b": 1}, "c": "text"}, as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["a.b", "1"], ["c", "text"]]
    monkeypatch.setenv("RANK", "1")
    show({"a": 1}, as_json=True)
    show_plan(plan(tmp_path), as_json=False)
    assert capsys.readouterr().out == ""


def test_activations_grow_with_everything_that_is_kept():
    base = {"tokens": 10, "layers": 2, "hidden": 8, "inner": 16, "mixer": 24}
    size = layer_activations(**base, compute=torch.float32)
    assert size == 2 * 10 * (4 * (4 * 8 + 24 + 3 * 16) + 2 * 8 * 4)
    assert layer_activations(**base, compute=torch.bfloat16) < size

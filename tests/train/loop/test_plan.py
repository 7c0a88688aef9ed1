"""A plan tells what a run will be without loading anything."""

from __future__ import annotations

import json

import pytest
import torch

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


def test_bf16_keeps_a_copy_of_the_weights(tmp_path):
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

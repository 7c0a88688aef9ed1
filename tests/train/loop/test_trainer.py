"""The loop as a user meets it: metrics, last and best, accumulation, refusals, Ctrl-C, seconds."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from paceline.errors import CapacityError, ConfigError
from paceline.train.loop.resume import checkpoint_steps
from paceline.train.loop.schedule import learning_rate
from paceline.train.loop.step import seed_of
from paceline.train.loop.trainer import Trainer, train
from tests.train.loop.tiny import TinyTask, curve, settings


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_metrics_checkpoints_exports_and_a_record(tmp_path, capsys):
    chosen = settings(eval_every=4)
    task = TinyTask(scores=(1.0, 3.0, 2.0))
    outcome = Trainer(task, chosen, tmp_path, "cpu", config={"optim": {"max_steps": 12}}).run()
    assert outcome.steps == 12 and outcome.evaluation == {"score": 2.0}
    logged = [m for m in metrics(tmp_path) if "loss" in m]
    assert [m["step"] for m in logged] == [3, 6, 9, 12]
    assert [m["learning_rate"] for m in logged] == [learning_rate(s - 1, 12, chosen) for s in (3, 6, 9, 12)]
    assert logged[-1]["tokens"] == sum((2 + i % 3) * 4 for i in range(12))
    assert [m["evaluation"] for m in metrics(tmp_path) if "evaluation" in m] == [
        {"score": s} for s in (1, 3, 2)
    ]
    assert checkpoint_steps(tmp_path / "checkpoints") == [8, 12]
    last = torch.load(tmp_path / "last" / "model.pt")
    assert all(torch.equal(last[n], p) for n, p in task.module.named_parameters())
    assert not torch.equal(torch.load(tmp_path / "best" / "model.pt")["up.weight"], last["up.weight"])
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 8, "score": 3.0}
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["config"] == {"optim": {"max_steps": 12}} and record["evaluation"] == {"score": 2.0}
    assert "step 12/12" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.unfinished"))


def test_it_learns_and_without_a_score_there_is_no_best(tmp_path):
    task = TinyTask()
    task.batch = lambda step, rank, world: torch.arange(11).repeat(2, 1)
    Trainer(task, settings(max_steps=60), tmp_path, "cpu").run()
    losses = [m["loss"] for m in metrics(tmp_path)]
    assert losses[-1] < 0.3 < 2 < losses[0]
    assert not (tmp_path / "best").exists() and (tmp_path / "last").exists()


@pytest.mark.parametrize("weighted", [True, False])
def test_accumulation_equals_the_gradient_of_one_batch(tmp_path, weighted):
    """By weight: the mean over all tokens. Without: the mean of the batches' means."""
    task = TinyTask(weighted)
    batches = [task.batch(i, 0, 1) for i in range(3)]
    generator = torch.Generator()
    losses, counts = [], []
    for i, batch in enumerate(batches):
        losses.append(task.loss(batch, generator.manual_seed(seed_of(0, i)))[0])
        counts.append(float(batch[:, 1:].numel()))
    mean = sum(a * c for a, c in zip(losses, counts, strict=True)) / sum(counts)
    expected = mean if weighted else sum(losses) / 3
    grads = torch.autograd.grad(expected, list(task.module.parameters()))
    norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads]))
    Trainer(
        TinyTask(weighted), settings(max_steps=1, gradient_accumulation=3, log_every=1), tmp_path, "cpu"
    ).run()
    (logged,) = metrics(tmp_path)
    assert logged["loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert logged["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_a_finished_or_stopped_run_is_not_overwritten_by_accident(tmp_path):
    (tmp_path / "mine.txt").write_text("not the trainer's")
    Trainer(TinyTask(), settings(), tmp_path, "cpu").run()
    with pytest.raises(
        ConfigError, match="holds a run at step 12: --resume continues it, --force replaces it"
    ):
        Trainer(TinyTask(), settings(), tmp_path, "cpu")
    Trainer(TinyTask(), settings(max_steps=3), tmp_path, "cpu", force=True).run()
    assert checkpoint_steps(tmp_path / "checkpoints") == [3] and len(metrics(tmp_path)) == 1
    assert (tmp_path / "mine.txt").is_file()


def test_resuming_with_other_settings_is_refused_by_name(tmp_path):
    Trainer(TinyTask(), settings(), tmp_path, "cpu", config={"optim": {"learning_rate": 1}}).run()
    with pytest.raises(ConfigError, match=r"optim\.learning_rate was 1, is 2"):
        Trainer(TinyTask(), settings(), tmp_path, "cpu", config={"optim": {"learning_rate": 2}}, resume=True)
    same = {"optim": {"learning_rate": 1, "log_every": 7}}
    with pytest.raises(ConfigError, match=r"processes × gradient_accumulation.* was 1, is 2"):
        Trainer(TinyTask(), settings(gradient_accumulation=2), tmp_path, "cpu", config=same, resume=True)
    outcome = Trainer(TinyTask(scores=(9.0,)), settings(), tmp_path, "cpu", config=same, resume=True).run()
    assert outcome.steps == 12 and outcome.evaluation == {}, "finished already"


def test_what_does_not_change_learning_may_change_on_resume(tmp_path, capsys):
    config = {"out": "a", "export": {"formats": ["zlab"]}, "optim": {"save_every": 4}}
    Trainer(TinyTask(scores=(2.0,)), settings(eval_every=0), tmp_path, "cpu", config=config).run()
    config = {"out": "b", "export": {"formats": ["zlab", "speculators"]}, "optim": {"save_every": 5}}
    Trainer(TinyTask(), settings(), tmp_path, "cpu", config=config, resume=True).run()
    assert f"nothing to do; {tmp_path / 'last'}, and the best of them, of step 12" in capsys.readouterr().err


def test_the_last_line_says_where_the_results_stand(tmp_path, capsys):
    Trainer(TinyTask(), settings(), tmp_path / "a", "cpu").run()
    assert capsys.readouterr().err.splitlines()[-1] == f"finished at step 12: {tmp_path / 'a' / 'last'}"
    Trainer(TinyTask(scores=(3.0, 2.0, 1.0)), settings(eval_every=5), tmp_path / "b", "cpu").run()
    assert f"of step 5, in {tmp_path / 'b' / 'best'}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB\nmore"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
    ],
)
def test_memory_that_does_not_suffice_is_no_fault_of_ours(tmp_path, error):
    class Large(TinyTask):
        def loss(self, batch, generator):
            raise error

    with pytest.raises(CapacityError, match=r"step 1 does not fit into memory: lower the rows"):
        Trainer(Large(), settings(), tmp_path, "cpu").run()


def test_another_runtime_error_stays_what_it_is(tmp_path):
    class Wrong(TinyTask):
        def loss(self, batch, generator):
            raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        Trainer(Wrong(), settings(), tmp_path, "cpu").run()


def test_options_without_effect_warn(tmp_path):
    with pytest.warns(UserWarning, match="muon_momentum has no effect on adamw"):
        settings(muon_momentum=0.9)
    with pytest.warns(UserWarning, match="fsdp has no effect in one process"):
        Trainer(TinyTask(), settings(parallel="fsdp"), tmp_path, "cpu")


def test_resume_without_a_checkpoint_begins_and_says_so(tmp_path):
    with pytest.warns(UserWarning, match="no checkpoint to resume from"):
        trainer = Trainer(TinyTask(), settings(), tmp_path, "cpu", resume=True)
    assert trainer.run().steps == 12


def test_two_runs_in_one_folder_are_one_too_many(tmp_path):
    class Second(TinyTask):
        def export(self, folder):
            for force in (True, False):
                with pytest.raises(
                    ConfigError, match=r"another run is writing to .*: wait for it, or stop it"
                ):
                    Trainer(TinyTask(), settings(), tmp_path, "cpu", resume=not force, force=force)
            super().export(folder)

    Trainer(Second(), settings(), tmp_path, "cpu").run()
    assert len(curve(tmp_path)) == 4, "the second took nothing away"
    Trainer(TinyTask(), settings(), tmp_path, "cpu", force=True).run()


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, [3, 5, 8, 10, 12, 15, 17, 20, 22, 24]),
        ({"eval_every": 0}, [24]),
        ({"eval_every": 10}, [10, 20, 24]),
        ({"max_steps": 4}, [1, 2, 3, 4]),
    ],
)
def test_what_can_be_measured_is_measured_ten_times_unless_told_otherwise(tmp_path, changes, steps):
    task = TinyTask(scores=tuple(range(50)))
    Trainer(task, settings(**{"max_steps": 24, **changes}), tmp_path, "cpu").run()
    assert [m["step"] for m in metrics(tmp_path) if "evaluation" in m] == steps
    assert json.loads((tmp_path / "best.json").read_text())["step"] == steps[-1]


def test_without_a_measure_nothing_is_exported_under_way(tmp_path):
    exported, task = [], TinyTask()
    usual = task.export
    task.export = lambda folder: exported.append(usual(folder))
    Trainer(task, settings(max_steps=24), tmp_path, "cpu").run()
    assert len(exported) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_go_on_and_interrupts(tmp_path, capsys, number):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    Trainer(TinyTask(), settings(), whole, "cpu").run()
    task = TinyTask()
    usual = task.batch

    def batch(step, rank, world):
        if step == 5:
            os.kill(os.getpid(), number)
        return usual(step, rank, world)

    task.batch = batch
    handler = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        Trainer(task, settings(), stopped, "cpu").run()
    assert signal.getsignal(number) is handler
    assert checkpoint_steps(stopped / "checkpoints")[-1] == 6
    said = capsys.readouterr().err
    assert "stopped and saved at step 6: --resume" in said
    assert f"exported as of step 6: {stopped / 'last'}" in said
    last = torch.load(stopped / "last" / "model.pt")
    assert all(torch.equal(last[name], p) for name, p in task.module.named_parameters())
    Trainer(TinyTask(), settings(), stopped, "cpu", resume=True).run()
    assert curve(stopped) == curve(whole)


def test_a_loss_that_is_no_number_stops_the_run_and_spoils_no_checkpoint(tmp_path):
    task = TinyTask()
    usual = task.loss

    def loss(batch, generator):
        value, more = usual(batch, generator)
        return (value * float("nan") if len(task.steps_seen) > 6 else value), more

    task.loss = loss
    with pytest.raises(ConfigError, match=r"the loss is nan.*step 8.*lower optim.learning_rate"):
        Trainer(task, settings(), tmp_path, "cpu").run()
    assert checkpoint_steps(tmp_path / "checkpoints") == [4]


def test_an_evaluation_that_fails_costs_no_step(tmp_path):
    class Failing(TinyTask):
        def evaluate(self, folder):
            raise ConfigError("the engine is out of memory")

    with pytest.raises(ConfigError, match="out of memory"):
        Trainer(Failing(), settings(eval_every=5, save_every=0), tmp_path, "cpu").run()
    assert checkpoint_steps(tmp_path / "checkpoints") == [5]


def test_seconds_fix_the_number_of_steps_after_measuring_the_pace(tmp_path):
    chosen = settings(max_steps=None, seconds=0.3, save_every=0)
    trainer = Trainer(TinyTask(), chosen, tmp_path, "cpu")
    outcome = trainer.run()
    assert trainer.paced <= 20 and trainer.total == outcome.steps > trainer.paced
    state = torch.load(tmp_path / "checkpoints" / f"step-{outcome.steps}" / "state.pt")
    assert (state["paced"], state["total"]) == (trainer.paced, trainer.total)
    assert metrics(tmp_path)[0]["learning_rate"] == 0.0
    capped = Trainer(TinyTask(), settings(max_steps=30, seconds=1e6), tmp_path, "cpu", force=True)
    assert capped.run().steps == 30


def test_compile_is_asked_of_the_task_or_of_its_module(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    Trainer(TinyTask(), settings(max_steps=1, compile=True), tmp_path / "a", "cpu").run()

    class Own(TinyTask):
        def compile(self):
            compiled.append("own")

    Trainer(Own(), settings(max_steps=1, compile=True), tmp_path / "b", "cpu").run()
    assert compiled == ["Net", "own"]


def test_train_builds_the_task_seeded_on_its_place(tmp_path):
    drawn = []

    def make(place):
        assert (place.device.type, place.rank, place.world) == ("cpu", 0, 1)
        drawn.append(torch.rand(1).item())
        return TinyTask()

    for name in ("a", "b"):
        train(make, settings(max_steps=1, seed=7), tmp_path / name, device="cpu", config={})
    assert drawn[0] == drawn[1]

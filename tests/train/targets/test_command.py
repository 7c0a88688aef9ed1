"""`paceline train target` from a corpus to a folder that the engine serves."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import yaml

from paceline import LLM, SamplingParams
from paceline.errors import CapacityError, ConfigError
from paceline.models.registry import read_target_spec
from paceline.train.loop.resume import load_newest
from paceline.train.modules.load import load_train_target
from paceline.train.targets.command import plan_target, prepare, run, run_target
from paceline.train.targets.task import TargetTask, held_out_loss
from tests.train.targets.small import settings, write_corpus


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    write_corpus(folder)
    chosen = settings(folder)
    return SimpleNamespace(folder=folder, settings=chosen, outcome=run_target(chosen, device="cpu"))


def test_it_learns_and_tells_the_held_out_loss_of_each_kind(trained):
    lines = [json.loads(x) for x in (trained.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 3 and losses[-1] < losses[0] - 0.2
    measured = trained.outcome.evaluation
    kinds = ("text", "chat", "synth")
    assert set(measured) == {"score", *(f"loss/{k}" for k in kinds), *(f"perplexity/{k}" for k in kinds)}
    assert measured["score"] == pytest.approx(-sum(measured[f"loss/{k}"] for k in kinds) / 3)


def test_the_measured_loss_is_that_of_the_exported_weights(trained):
    ready = prepare(trained.settings)
    model = load_train_target(trained.folder / "out" / "last")
    loss = held_out_loss(model, ready.held_out["chat"], count=2, head_rows=1000)
    assert loss == pytest.approx(trained.outcome.evaluation["loss/chat"], rel=1e-5)


def test_the_engine_serves_the_export_in_chat_format(trained):
    last = trained.folder / "out" / "last"
    spec = read_target_spec(last)
    assert spec.layer_types == ("linear_attention",) * 3 + ("full_attention",) and spec.vocab_size == 448
    llm = LLM(str(last), device="cpu", num_blocks=16)
    assert llm.tokenizer.has_chat_template
    ids = llm.encode("Say 3.", chat=True)
    assert "<|im_start|>user" in llm.tokenizer.decode(ids)
    (answer,) = llm.generate(["Say 3."], SamplingParams(max_tokens=4, temperature=0.0), chat=True)
    assert 1 <= len(answer.token_ids) <= 4
    assert {llm.tokenizer.decode([i]) for i in spec.eos_ids} == {"<|im_end|>", "<|endoftext|>"}
    llm.close()


def test_a_run_goes_on_from_its_last_checkpoint(trained, tmp_path):
    write_corpus(tmp_path)
    short = settings(tmp_path)
    usual = TargetTask.batch

    def batch(self, step, rank, world):
        if step == 4:
            raise RuntimeError("died")
        return usual(self, step, rank, world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetTask, "batch", batch)
        with pytest.raises(RuntimeError, match="died"):
            run_target(short, device="cpu")
    outcome = run_target(short, device="cpu", resume=True)
    assert outcome.evaluation == trained.outcome.evaluation


def test_init_from_continues_a_hybrid_with_its_tokenizer(trained, tmp_path):
    again = settings(
        trained.folder, out=str(tmp_path), model=None, tokenizer=None,
        init_from=str(trained.folder / "out" / "last"), optim={"max_steps": 1, "learning_rate": 1e-6},
    )  # fmt: skip
    run_target(again, device="cpu")
    old, new = (load_train_target(path) for path in (trained.folder / "out" / "last", tmp_path / "last"))
    for (name, a), b in zip(old.named_parameters(), new.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.01, atol=1e-4, msg=name)
    tokenizers = [
        (f / "tokenizer.json").read_text() for f in (trained.folder / "out" / "last", tmp_path / "last")
    ]
    assert tokenizers[0] == tokenizers[1]


def test_a_teacher_that_is_the_student_adds_nothing(trained, tmp_path):
    last = str(trained.folder / "out" / "last")
    run_target(
        settings(
            trained.folder, out=str(tmp_path), model=None, tokenizer=None, init_from=last,
            distill={"teacher": last, "weight": 0.25},
            optim={"max_steps": 2, "learning_rate": 1e-3, "log_every": 1, "eval_every": 0},
        ),
        device="cpu",
    )  # fmt: skip
    first, second, _ = (json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first["kl"] == pytest.approx(0.0, abs=1e-6) and second["kl"] > 1e-6
    assert first["loss"] == pytest.approx(0.75 * first["cross_entropy"], rel=1e-5)


def test_a_plan_counts_without_training(trained, capsys):
    made = plan_target(trained.settings, "cpu")
    model = load_train_target(trained.folder / "out" / "last")
    assert made["parameters"] == {"trained": sum(p.numel() for p in model.parameters()), "frozen": 0}
    assert made["tokens"] == 6 * 2 * 64 and made["steps"] == 6
    per_step = 6 * made["parameters"]["trained"] * 2 * 64
    assert made["arithmetic"]["tflop_per_step"] == pytest.approx(per_step / 1e12)
    elsewhere = trained.settings.model_copy(update={"out": str(trained.folder / "elsewhere")})
    first = plan_target(elsewhere, "cpu")
    assert first["seconds"] > 0 and "an estimate" in first["seconds_from"]
    assert "the pace of the run in" in made["seconds_from"]
    assert set(made["data"]["tokens_by_kind"]) == {"text", "chat", "synth"}
    path = trained.folder / "target.yaml"
    path.write_text(yaml.safe_dump(trained.settings.model_dump(mode="json", exclude_none=True)))
    flags = {"resume": False, "force": False, "device": "cpu"}
    assert run(path, plan=True, as_json=True, **flags) == 0
    assert json.loads(capsys.readouterr().out)["memory"] == made["memory"]
    assert run(path, plan=True, as_json=False, **flags) == 0
    assert "tokens_by_kind" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"text": None, "dialogues": None, "synth": None}, "nothing to learn from"),
        ({"tokenizer": None}, "give a folder, or {vocab_size: ...}"),
        ({"init_from": "x"}, "init_from brings the shape along"),
        ({"length": 512}, "length exceeds model.max_position_embeddings"),
    ],
)
def test_settings_that_do_not_fit_together(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message.replace("{", r"\{")):
        settings(tmp_path, **changes)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    values = settings(tmp_path, out=str(tmp_path / "file")).model_dump(mode="json", exclude_none=True)
    (tmp_path / "file").touch()
    path = tmp_path / "target.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        run(path, plan=False, as_json=True, resume=False, force=False, device="cpu")


def test_more_than_the_machine_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.train.loop.memory.total_memory", lambda _: 2**10)
    monkeypatch.setattr("paceline.train.loop.memory.memory_budget", lambda _, share: 2**10)
    write_corpus(tmp_path)
    with pytest.raises(CapacityError, match=r"cpu has 0\.0 GiB in all"):
        run_target(settings(tmp_path), device="cpu")


def test_files_that_cannot_be_read_are_named(tmp_path):
    write_corpus(tmp_path)
    with pytest.raises(ConfigError, match=r"text: cannot read .*nowhere\.txt"):
        prepare(settings(tmp_path, text=[{"path": str(tmp_path / "nowhere.txt"), "kind": "a"}]))
    with pytest.raises(ConfigError, match=r"tokenizer: cannot read .*tokenizer\.json"):
        prepare(settings(tmp_path, tokenizer=str(tmp_path)))
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(ConfigError, match=r"chats\.jsonl, line 1: .*ends with an answer"):
        prepare(settings(tmp_path))


def test_products_in_bf16_leave_masters_and_state_in_fp32(trained, tmp_path):
    optim = {"max_steps": 2, "learning_rate": 0.01, "compute_dtype": "bf16", "log_every": 1}
    run_target(settings(trained.folder, out=str(tmp_path), optim=optim), device="cpu")
    state = load_newest(tmp_path / "checkpoints")
    assert {t.dtype for t in state["module"].values()} == {torch.float32}
    assert {t.dtype for values in state["optimizer"].values() for t in values.values()} == {torch.float32}
    half, full = (
        json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        for out in (tmp_path, fp32_run(trained, tmp_path / "fp32", optim))
    )
    assert half != full and half == pytest.approx(full, rel=0.01)


def fp32_run(trained, out, optim):
    """The same run with products in fp32."""
    chosen = settings(trained.folder, out=str(out), optim={**optim, "compute_dtype": "fp32"})
    run_target(chosen, device="cpu")
    return out

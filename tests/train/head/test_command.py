"""`paceline train mtp` from a file to a target that drafts with its own head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.errors import CapacityError, ConfigError, PairingError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.quantize.graft import graft_mtp
from paceline.train.draft.stage import TargetFolder
from paceline.train.head import command
from tests import tiny, tiny_quantized
from tests.train.draft.test_command import losses, write_settings

OPTIM = {"max_steps": 3, "log_every": 1, "learning_rate": 0.001}


def settings(folder: Path, **changes: Any) -> Path:
    file = write_settings(folder)
    values = json.loads(file.read_text())
    values.pop("drafter")
    file.write_text(json.dumps({**values, "num_anchors": 6, "optim": OPTIM, **changes}))
    return file


def run(file: Path, **options: Any) -> int:
    flags = {"plan": False, "as_json": True, "resume": False, "force": True, "device": "cpu", **options}
    return command.run(file, **flags)


@pytest.mark.parametrize("form", ["head", "model", None])
def test_a_run_ends_with_a_served_head(
    tmp_path: Path, form: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = {"prompts": str(tmp_path / "held_out.jsonl"), "limit": 2, "max_tokens": 8}
    export = {"form": form, "dtype": "float32"}
    assert run(settings(tmp_path, evaluate=evaluate, export=export, steps=2)) == 0
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    assert ("paceline graft-mtp" in said.err) == (form == "head")
    assert result["score"] >= 1 and "accepted_at/2" in result and "accepted_at/3" not in result
    best = tmp_path / "out" / "best"
    if form == "head":  # it goes into the target as any head does
        assert len(Checkpoint.open(best).tensors) == 15
        graft_mtp(best, tiny.make_target(tmp_path / "bare", "tied", mtp=False), tmp_path / "grafted")
        best = tmp_path / "grafted"
    llm = LLM(str(best), speculative_config={"method": "mtp", "num_speculative_tokens": 2}, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    plain = LLM(str(tmp_path / "target"), max_model_len=64)
    prompt = [5, 6, 7]
    assert llm.generate([prompt], params)[0].token_ids == plain.generate([prompt], params)[0].token_ids


def test_a_quantised_target_gets_a_head_that_is_grafted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tiny.make_target(tmp_path / "bare", "tied", mtp=False)
    packed = tiny_quantized.quantize(plain, tmp_path / "packed", tiny_quantized.everything())
    file = settings(tmp_path, target=str(packed))
    assert run(file, plan=True) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["export"]["form"] == "head"
    assert run(file) == 0
    last = tmp_path / "out" / "last"
    assert f"paceline graft-mtp {last} {packed} --out DIR" in capsys.readouterr().err
    graft_mtp(last, packed, tmp_path / "grafted")
    LLM(str(tmp_path / "grafted"), speculative_config={"method": "mtp"}, max_model_len=64).close()
    assert run(settings(tmp_path, target=str(packed), init_from=str(last), out=str(tmp_path / "more"))) == 0
    for plan in (True, False):
        with pytest.raises(ConfigError, match=r"is quantised: set export\.form: head"):
            run(settings(tmp_path, target=str(packed), export={"form": "model"}), plan=plan)


def test_it_continues_a_head(tmp_path: Path) -> None:
    file = settings(tmp_path, init_from=str(tmp_path / "target"))
    target = command.open_target(str(tmp_path / "target"))
    loaded = command.build_head(command.load_yaml(file, command.HeadSettings), target)
    stored = Checkpoint.open(tmp_path / "target")
    assert all(torch.equal(p, stored.weight(f"mtp.{n}")) for n, p in loaded.named_parameters())
    bare = tiny.make_target(tmp_path / "bare", "tied", mtp=False)
    for plan in (True, False):
        with pytest.raises(PairingError, match="holds no multi-token head"):
            run(settings(tmp_path, init_from=str(bare)), plan=plan)


@pytest.mark.parametrize("kind", ["decay", "kl"])
def test_each_loss_falls(tmp_path: Path, kind: str) -> None:
    run(settings(tmp_path, loss={"kind": kind}, optim={**OPTIM, "max_steps": 30, "learning_rate": 0.01}))
    seen = losses(tmp_path / "out")
    assert sum(seen[-5:]) < 0.8 * sum(seen[:5])


def test_the_plan_says_what_a_run_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(settings(tmp_path), plan=True) == 0
    plan = json.loads(capsys.readouterr().out)
    head = tiny.mtp_weights(tiny.TARGETS["tied"])
    assert plan["parameters"]["trained"] == sum(w.numel() for w in head.values())
    assert plan["steps"] == 3 and plan["seconds"] > 0 and not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=r"evaluate\.prompts"):
        run(settings(tmp_path, evaluate={"prompts": str(tmp_path / "nowhere")}), plan=True)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        run(settings(tmp_path, out=str(tmp_path / "file")))


def test_more_than_the_machine_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.train.loop.memory.total_memory", lambda _: 2**10)
    monkeypatch.setattr("paceline.train.loop.memory.memory_budget", lambda _, share: 2**10)
    with pytest.raises(CapacityError, match=r"cpu has 0\.0 GiB in all"):
        run(settings(tmp_path))


def test_targets_without_heads_are_refused(tmp_path: Path) -> None:
    dense = command.open_target(str(tiny.make_target(tmp_path, "odd")))
    with pytest.raises(UnsupportedModelError, match="only hybrid targets"):
        command.check_kind(TargetFolder(dense.path, dense.spec))


def test_more_steps_than_serving_makes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps"):
        run(settings(tmp_path, steps=4))

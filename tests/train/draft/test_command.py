"""`paceline train drafter` from a file to a served drafter, stage by stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import CapacityError, ConfigError
from paceline.models.registry import read_drafter_spec, read_target_spec
from paceline.train.data.shards import ShardWriter
from paceline.train.draft import command
from paceline.train.settings.base import load_yaml
from paceline.train.settings.drafter import DrafterSettings
from tests import tiny
from tests.train.draft.harness import samples

pytestmark = pytest.mark.filterwarnings("ignore:.*answers hold the mask")  # the samples are random ids

SETTINGS: dict[str, Any] = {
    "drafter": {
        "num_hidden_layers": 2, "intermediate_size": 48, "head_dim": 16, "block_size": 4,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6,
    },
    "num_anchors": 5,
    "optim": {"max_steps": 3, "log_every": 1, "learning_rate": 0.001},
}  # fmt: skip


def write_settings(folder: Path, **changes: Any) -> Path:
    """A target, its answers, held-out prompts, and a file of settings over them."""
    if not (folder / "target").exists():
        tiny.make_target(folder / "target", "tied")
        with ShardWriter(folder / "data", {"vocab_size": 128, "thinking": "off"}) as writer:
            for sample in samples(7):
                writer.write(sample)
        lines = [{"id": i, "prompt": f"say {i}", "category": "ab"[i % 2]} for i in range(4)]
        (folder / "held_out.jsonl").write_text("\n".join(map(json.dumps, lines)))
    values = {
        "target": str(folder / "target"),
        "out": str(folder / "out"),
        "data": {"path": str(folder / "data"), "rows": 1, "length": 48},
        **SETTINGS,
        **changes,
    }
    file = folder / "drafter.yaml"
    file.write_text(json.dumps(values))  # JSON is YAML
    return file


def run(file: Path, **options: Any) -> int:
    flags = {"plan": False, "as_json": True, "resume": False, "force": True, "device": "cpu", **options}
    return command.run(file, **flags)


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def test_a_run_ends_with_a_served_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate = {"prompts": str(tmp_path / "held_out.jsonl"), "limit": 3, "max_tokens": 8}
    file = write_settings(tmp_path, evaluate=evaluate, export={"formats": ["speculators", "zlab"]})
    assert run(file) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["score"] == result["acceptance_length"] >= 1
    assert {"acceptance_length/a", "acceptance_length/b", "accepted_at/1", "accepted_at/3"} <= set(result)
    target = read_target_spec(tmp_path / "target")
    for place in ("last", "best", "last/zlab"):
        spec = read_drafter_spec(tmp_path / "out" / place, target)
        assert (spec.block_size, spec.windows, spec.mask_token_id) == (4, (6, None), 104)


def test_it_continues_a_published_drafter_on_longer_rows(tmp_path: Path) -> None:
    drafter = tiny.make_drafter(tmp_path / "published", tiny.drafter_for("tied"))
    stage = {"data": {"path": str(tmp_path / "data"), "rows": 1, "length": 96}, "num_anchors": 9,
             "optim": {"max_steps": 2, "log_every": 1}}  # fmt: skip
    file = write_settings(tmp_path, init_from=str(drafter), drafter={}, long_context=stage)
    values = json.loads(file.read_text())
    values.pop("drafter")
    file.write_text(json.dumps(values))
    assert run(file) == 0
    assert len(losses(tmp_path / "out")) == 3 and len(losses(tmp_path / "out" / "long_context")) == 2
    target = read_target_spec(tmp_path / "target")
    assert read_drafter_spec(tmp_path / "out/long_context/last", target) == read_drafter_spec(drafter, target)


@pytest.mark.parametrize("kind", ["decay", "kl"])
def test_features_from_disk_train_alike(tmp_path: Path, kind: str) -> None:
    loss = {"kind": kind}
    run(write_settings(tmp_path, loss=loss))
    online = losses(tmp_path / "out")
    cached = {"mode": "cached", "folder": str(tmp_path / "cache")}
    for _ in range(2):  # written, then found
        run(write_settings(tmp_path, loss=loss, features=cached))
        assert losses(tmp_path / "out") == pytest.approx(online, rel=2e-2)  # stored in bfloat16


def test_a_stale_cache_is_refused(tmp_path: Path) -> None:
    cached = {"mode": "cached", "folder": str(tmp_path / "cache")}
    run(write_settings(tmp_path, features=cached))
    other = {**SETTINGS["drafter"], "target_layer_ids": [0, 3]}
    with pytest.raises(ConfigError, match="other taps"):
        run(write_settings(tmp_path, features=cached, drafter=other))
    with pytest.raises(ConfigError, match="lacks some of the samples"):
        run(
            write_settings(
                tmp_path, features=cached, data={"path": str(tmp_path / "data"), "rows": 1, "length": 19}
            )
        )
    tiny.make_target(tmp_path / "target", "tied", seed=5)
    with pytest.raises(ConfigError, match="another target"):
        run(write_settings(tmp_path, features=cached))


def test_a_cache_that_would_not_fit_is_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached = {"mode": "cached", "folder": str(tmp_path / "cache"), "max_gib": 1e-6}
    with pytest.raises(CapacityError, match="max_gib"):
        run(write_settings(tmp_path, features=cached))
    assert "GiB in" in capsys.readouterr().err and not (tmp_path / "cache").exists()


def test_the_other_mode_warns(tmp_path: Path) -> None:
    evaluate = {"prompts": str(tmp_path / "held_out.jsonl"), "limit": 1, "max_tokens": 3, "thinking": True}
    with pytest.warns(UserWarning, match="0 of 7 answers were written with thinking on"):
        run(write_settings(tmp_path, evaluate=evaluate))


def test_answers_of_another_model_warn_or_are_refused(tmp_path: Path) -> None:
    file = write_settings(tmp_path)
    meta = tmp_path / "data" / "meta.json"
    meta.write_text(json.dumps({"vocab_size": 128, "model_fingerprint": "other"}))
    with pytest.warns(UserWarning, match="by another model"):
        run(file)
    meta.write_text(json.dumps({"vocab_size": 64}))
    with pytest.raises(ConfigError, match="vocabulary of 64"):
        run(file)


def test_the_plan_says_what_a_run_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_settings(tmp_path), plan=True) == 0
    plan = json.loads(capsys.readouterr().out)
    settings = load_yaml(tmp_path / "drafter.yaml", DrafterSettings)
    drafter = command.build_drafter(settings, command.open_target(settings.target))
    assert plan["parameters"]["trained"] == sum(p.numel() for p in drafter.parameters())
    shape = plan["settings"]["drafter"]
    assert (shape["mask_token_id"], shape["target_layer_ids"], shape["num_attention_heads"]) == (104, [1], 4)
    assert plan["settings"]["loss"]["decay_gamma"] is None, "dpace has none"
    assert plan["steps"] == 3 and plan["seconds"] > 0 and "an estimate" in plan["seconds_from"]
    assert plan["data"]["samples"] == 7 and 0 < plan["arithmetic"]["share_of_target"] < 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ({"mask_token_id": 128}, "beyond the target's embedding table of 128 rows"),
        ({"target_layer_ids": [0, 4]}, "names layer 4"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": None}, "need each other"),
        ({"blocksize": 8}, "did you mean block_size"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(tmp_path: Path, drafter: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(write_settings(tmp_path, drafter={"num_hidden_layers": 2, **drafter}))


def test_a_shape_beside_init_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="init_from brings the shape along"):
        run(write_settings(tmp_path, init_from="somewhere"))


def test_training_is_the_same_for_a_seed(tmp_path: Path) -> None:
    file = write_settings(tmp_path)
    run(file)
    first = losses(tmp_path / "out")
    torch.manual_seed(99)
    run(file)
    assert losses(tmp_path / "out") == first

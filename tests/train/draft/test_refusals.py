"""What `paceline train drafter` refuses, or says, before it trains anything."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from paceline.errors import CapacityError, ConfigError
from paceline.train.data.shards import read_samples
from paceline.train.draft import command
from tests import tiny
from tests.train.draft.test_command import SETTINGS, run, write_settings

pytestmark = pytest.mark.filterwarnings("ignore:.*answers hold the mask")  # the samples are random ids


def _continued(folder: Path, **changes: object) -> Path:
    """Settings without a shape: init_from brings it along."""
    file = write_settings(folder, **changes)
    values = json.loads(file.read_text())
    values.pop("drafter")
    file.write_text(json.dumps(values))
    return file


@pytest.mark.parametrize("plan", [True, False])
def test_a_layout_that_cannot_express_the_drafter_is_no_surprise_at_the_end(
    tmp_path: Path, plan: bool
) -> None:
    causal = {**SETTINGS["drafter"], "is_causal": True}
    file = write_settings(tmp_path, drafter=causal, export={"formats": ["zlab", "speculators"]})
    with pytest.raises(ConfigError, match="knows no causal full attention"):
        run(file, plan=plan)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("inside", ["", "/deeper/still"])
def test_a_file_in_the_place_of_the_folder_is_named_at_the_start(
    tmp_path: Path, plan: bool, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(command, "open_target", lambda _: pytest.fail("it began"))
    with pytest.raises(ConfigError, match=r"^out: .*/file is a file; name a folder$"):
        run(write_settings(tmp_path, out=f"{tmp_path}/file{inside}"), plan=plan)


def test_more_than_the_machine_has_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.train.loop.memory.total_memory", lambda _: 2**10)
    monkeypatch.setattr("paceline.train.loop.memory.memory_budget", lambda _, share: 2**10)
    monkeypatch.setattr(command, "load_train_target", lambda *_: pytest.fail("it began"))
    with pytest.raises(CapacityError, match=r"cpu has 0\.0 GiB in all: lower the rows"):
        run(write_settings(tmp_path))
    run(write_settings(tmp_path), plan=True)
    assert "lower the rows" in json.loads(capsys.readouterr().out)["shortage"]


@pytest.mark.parametrize("wrong", [128, -1])
def test_an_id_outside_the_table_names_its_sample(tmp_path: Path, wrong: int) -> None:
    file = write_settings(tmp_path)
    shard = next((tmp_path / "data").glob("shard-*.jsonl"))
    lines = [json.loads(line) for line in shard.read_text().splitlines()]
    lines[2]["answer_ids"][0] = wrong
    shard.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(
        ConfigError, match=f"sample {lines[2]['id']} holds the id {wrong}, the target has 128"
    ):
        run(file, plan=True)


@pytest.mark.parametrize("shards, words", [
    (("shard-00000.jsonl",), r"holds no sample \(shard-00000\.jsonl: empty\): write answers"),
    (("shard-00000.jsonl", "shard-00001.jsonl"), r"\(shard-00000\.jsonl to shard-00001\.jsonl: empty\)"),
    ((), "data holds no whole shard: write answers with `paceline train data`"),
])  # fmt: skip
def test_a_folder_without_a_sample_is_named(tmp_path: Path, shards: tuple[str, ...], words: str) -> None:
    file = write_settings(tmp_path)
    next((tmp_path / "data").glob("shard-*.jsonl")).unlink()
    for name in shards:
        (tmp_path / "data" / name).touch()
    with pytest.raises(ConfigError, match=words):
        run(file, plan=True)


@pytest.mark.parametrize("plan", [True, False])
def test_rows_longer_than_the_drafters_positions_are_refused(tmp_path: Path, plan: bool) -> None:
    shape = {**SETTINGS["drafter"], "max_position_embeddings": 47}
    words = r"max_position_embeddings = 47 is less than data\.length = 48: raise it, or lower data\.length"
    with pytest.raises(ConfigError, match=words):
        run(write_settings(tmp_path, drafter=shape), plan=plan)
    run(write_settings(tmp_path, drafter={**shape, "max_position_embeddings": 48}), plan=plan)


def test_a_continued_drafter_of_few_positions_warns(tmp_path: Path) -> None:
    published = tiny.make_drafter(tmp_path / "published", tiny.drafter_for("tied"))
    config = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    with pytest.warns(UserWarning, match=r"drafts up to position 40, data\.length is 48"):
        run(_continued(tmp_path, init_from=str(published)), plan=True)


def test_a_mask_that_answers_hold_warns_with_the_count(tmp_path: Path) -> None:
    write_settings(tmp_path)
    found = list(read_samples(tmp_path / "data"))
    mask = found[0].answer_ids[0]
    count = sum(sample.answer_ids.count(mask) for sample in found)
    shape = {**SETTINGS["drafter"], "mask_token_id": mask}
    with pytest.warns(UserWarning, match=f"answers hold the mask's token {mask} {count} times"):
        run(write_settings(tmp_path, drafter=shape), plan=True)
    inside = next(i for s in found for i in s.prompt_ids if not any(i in t.answer_ids for t in found))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of prompts, which are not guessed, nothing is said
        run(write_settings(tmp_path, drafter={**shape, "mask_token_id": inside}), plan=True)


@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_damaged_cache_says_so(tmp_path: Path, harm: str) -> None:
    file = write_settings(tmp_path, features={"mode": "cached", "folder": str(tmp_path / "cache")})
    run(file)
    stored = next((tmp_path / "cache").glob("*.safetensors"))
    if harm == "cut":
        stored.write_bytes(stored.read_bytes()[:100])
    else:
        stored.unlink()
    with pytest.raises(ConfigError, match=r"is missing or damaged .*: remove the folder"):
        run(file)


def test_rows_of_the_second_stage_are_told_from_the_first(tmp_path: Path) -> None:
    stage = {"data": {"path": str(tmp_path / "data"), "length": 10**6}, "optim": {"max_steps": 1}}
    with pytest.raises(ConfigError, match=r"^long_context\.data\.length = 1000000 is more than"):
        run(write_settings(tmp_path, long_context=stage), plan=True)


def test_a_plan_reads_the_held_out_prompts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.prompts: .*nowhere is no file"):
        run(write_settings(tmp_path, evaluate={"prompts": str(tmp_path / "nowhere")}), plan=True)


def test_a_plan_shows_the_shape_that_init_from_brings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = tiny.make_drafter(tmp_path / "published", tiny.drafter_for("tied"))
    published = json.loads((drafter / "config.json").read_text())
    assert run(_continued(tmp_path, init_from=str(drafter)), plan=True) == 0
    shape = json.loads(capsys.readouterr().out)["settings"]["drafter"]
    for key in ("num_hidden_layers", "block_size", "num_attention_heads", "head_dim"):
        assert shape[key] == published[key]


def test_a_plan_on_paper_says_each_thing_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached = {"mode": "cached", "folder": str(tmp_path / "cache")}
    assert run(write_settings(tmp_path, features=cached), plan=True, as_json=False) == 0
    text = capsys.readouterr().out
    assert text.count("answer_tokens") == 1 and "feature_cache_gib" in text
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "settings", "parameters", "memory (estimated, in one process)", "work", "data", "arithmetic",
    ]  # fmt: skip
    assert not (tmp_path / "cache").exists()

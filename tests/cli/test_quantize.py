"""`quantize`, `graft-mtp`, `inspect` and `dequantize` as they are typed, on tiny models."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from tests.quantize.folders import contents, tensors_of, tiny_model, weights_only
from tests.quantize.sparse import write_27b


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model")


@pytest.fixture
def recipe(tmp_path, model):
    return weights_only(tmp_path)


def one(result) -> dict:
    assert result.code == 0, result.err
    (row,) = result.rows
    return row


def test_quantize_writes_what_its_plan_says(paceline, model, recipe, tmp_path):
    plan = one(paceline("quantize", str(model), "--recipe", recipe, "--plan", "--json"))
    assert not (tmp_path / "out").exists()
    done = one(paceline("quantize", str(model), str(tmp_path / "out"), "--recipe", recipe, "--json"))
    written = tensors_of(tmp_path / "out")
    assert plan["count"] == done["count"] == len(written)
    assert plan["bytes"] == done["bytes"] == sum(t.nbytes for t in written.values())
    assert {t["name"]: t["shape"] for t in plan["tensors"]} == {n: list(t.shape) for n, t in written.items()}
    assert done["modules"]["w4a16_nvfp4"] == 16 and done["files"] == 1


def test_quantize_calibrates_and_says_so(paceline, tmp_path):
    model = tiny_model(tmp_path / "model", tokenizer=True)
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"text": "a few words"}\n{"text": "and more"}\n')
    arguments = ("quantize", str(model), str(tmp_path / "out"), "--recipe", "xs", "--scales", "mse")
    arguments = (*arguments, "--calibration", str(samples), "--samples", "2", "--seq-len", "64")
    plan = paceline(*arguments, "--plan")
    assert plan.code == 0 and "2 samples of at most 64 tokens" in plan.out and "nvfp4" in plan.out
    result = paceline(*arguments)
    assert (result.code, len(result.out.splitlines())) == (0, 1) and "GB in 1 file" in result.out
    assert any(name.endswith("input_scale") for name in tensors_of(tmp_path / "out"))
    record = json.loads((tmp_path / "out" / "paceline_quantization.json").read_text())
    assert "samples.jsonl" in json.dumps(record)


def test_every_option_reaches_its_place(paceline, model, tmp_path):
    def names(*extra):
        plan = one(paceline("quantize", str(model), "--plan", "--json", *extra))
        return {tensor["name"] for tensor in plan["tensors"]}

    regular, xs = names(), names("--recipe", "xs")
    assert regular < xs < names("--recipe", "xs", "--legacy-ab")
    without = names("--mtp", "drop")
    assert not any(name.startswith("mtp.") for name in without)
    assert names("--mtp", str(model)) == regular
    shards = paceline("quantize", str(model), "--plan", "--shard-size", "20kB").out
    assert "1 file(s)" not in shards and "file(s)" in shards


def test_what_is_there_is_kept_without_force(paceline, model, recipe, tmp_path):
    arguments = ("quantize", str(model), str(tmp_path / "out"), "--recipe", recipe)
    assert paceline(*arguments).code == 0
    before = contents(tmp_path / "out")
    again = paceline(*arguments)
    assert again.code == 2 and "--force" in again.err and contents(tmp_path / "out") == before
    assert paceline(*arguments, "--force").code == 0


def test_an_interrupted_run_goes_on_with_resume(paceline, model, recipe, tmp_path, monkeypatch):
    @contextmanager
    def impatient():
        def advance(what, done, total):
            if done > total / 2:
                raise KeyboardInterrupt

        yield advance

    arguments = ("quantize", str(model), str(tmp_path / "out"), "--recipe", recipe, "--shard-size", "50kB")
    with monkeypatch.context() as patch:
        patch.setattr("paceline.cli.quantize.progress_bar", impatient)
        assert paceline(*arguments).code == 130
    assert not (tmp_path / "out").exists() and (tmp_path / "out.unfinished").is_dir()
    refused = paceline(*arguments)
    assert refused.code == 2 and "--resume" in refused.err
    assert paceline(*arguments, "--resume").code == 0
    assert paceline("quantize", str(model), str(tmp_path / "whole"), *arguments[3:]).code == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_what_has_no_effect_is_said(paceline, model, recipe, tmp_path):
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"text": "a few words"}\n')
    plan = paceline("quantize", str(model), "--recipe", recipe, "--plan", "--calibration", str(samples))
    assert plan.code == 0 and "--calibration has no effect" in plan.err and "no calibration" in plan.out


def test_a_quantised_model_needs_requantize(paceline, model, recipe, tmp_path):
    first, second = str(tmp_path / "out"), str(tmp_path / "again")
    assert paceline("quantize", str(model), first, "--recipe", recipe).code == 0
    refused = paceline("quantize", first, second, "--recipe", recipe)
    assert refused.code == 2 and "--requantize" in refused.err
    assert paceline("quantize", first, second, "--recipe", recipe, "--requantize").code == 0


@pytest.mark.parametrize(
    ("options", "count", "gigabytes"),
    [(("regular",), 1967, 28.55), (("xs",), 2399, 20.59), (("xs", "--legacy-ab"), 2687, 20.59)],
)
def test_the_plan_of_a_27b_from_headers(paceline, tmp_path, options, count, gigabytes):
    plan = one(paceline("quantize", str(write_27b(tmp_path)), "--recipe", *options, "--plan", "--json"))
    assert plan["count"] == len(plan["tensors"]) == count
    assert plan["bytes"] / 1e9 == pytest.approx(gigabytes, abs=0.1)


def test_the_demo_can_always_be_planned(paceline):
    plan = one(paceline("quantize", "demo", "--recipe", "xs", "--plan", "--json"))
    assert plan["count"] > 300 and plan["bytes"] < 60e6


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("quantize", "MODEL"), "OUT"),
        (("quantize", "MODEL", "OUT", "--recipe", "huge"), "huge"),
        (("quantize", "MODEL", "OUT", "--scales", "min"), "min"),
        (("quantize", "MODEL", "OUT", "--shard-size", "big"), "big"),
        (("quantize", "MODEL", "OUT", "--samples", "0"), "--samples"),
        (("quantize", "MODEL", "OUT", "--mtp", "nowhere"), "nowhere"),
        (("quantize", "MODEL", "OUT", "--legacy-ab"), "--recipe xs"),
        (("quantize", "MODEL", "OUT", "--calibration", "nowhere.jsonl"), "nowhere.jsonl"),
        (("quantize", "MODEL", "OUT", "--force", "--resume", "--recipe", "WEIGHTS"), "--resume"),
        (("quantize", "nowhere", "OUT"), "nowhere"),
        (("inspect", "nowhere"), "nowhere"),
        (("dequantize", "MODEL", "OUT"), "not quantised"),
        (("graft-mtp", "MODEL", "nowhere"), "nowhere"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(paceline, model, recipe, tmp_path, arguments, part):
    places = {"MODEL": str(model), "OUT": str(tmp_path / "out"), "WEIGHTS": recipe}
    result = paceline(*(places.get(argument, argument) for argument in arguments))
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1), result.err
    assert part in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"model", "weights-only.yaml"}


def test_graft_then_inspect_then_back(paceline, model, recipe, tmp_path):
    out = str(tmp_path / "out")
    assert paceline("quantize", str(model), out, "--recipe", recipe, "--mtp", "drop").code == 0
    assert one(paceline("inspect", out, "--json"))["mtp"] == "absent"
    copied = one(paceline("graft-mtp", str(model), out, "--out", str(tmp_path / "copy"), "--json"))
    assert len(copied["hashes"]) == 15 and copied["out"].endswith("copy")
    assert "15 tensors" in paceline("graft-mtp", str(model), out).out
    before = contents(tmp_path / "out")
    assert "nothing" in paceline("graft-mtp", str(model), out).out
    assert contents(tmp_path / "out") == before
    found = one(paceline("inspect", out, "--json"))
    assert found["mtp"] == "present" and found["loads"] and not found["problems"]
    plain = one(paceline("dequantize", out, str(tmp_path / "plain"), "--dtype", "float32", "--json"))
    assert plain["decoded"] == 16
    assert set(tensors_of(tmp_path / "plain")) == set(tensors_of(model))


def test_inspect_says_what_will_not_load(paceline, model, recipe, tmp_path):
    out = tmp_path / "out"
    assert paceline("quantize", str(model), str(out), "--recipe", recipe).code == 0
    sound = paceline("inspect", str(out))
    assert sound.code == 0 and "multi-token head: present" in sound.out and sound.out.endswith("loads\n")
    (out / "model.safetensors").write_bytes(b"short")
    broken = paceline("inspect", str(out))
    assert broken.code == 1 and "error: unreadable" in broken.out and "fix: " in broken.out
    assert paceline("inspect", str(out), "--json").code == 1

"""`evaluate` as it is typed, on a tiny model and its quantised form; the engine is the real one."""

from __future__ import annotations

import json

import pytest

from paceline.cli.main import main
from tests.quantize.folders import quantize_tiny, tiny_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tiny_model(tmp_path_factory.mktemp("base") / "model", vision=False, tokenizer=True)
    quantize_tiny(base, base.parent / "quantised")
    return str(base.parent / "quantised"), str(base)


def run(capsys, *arguments):
    code = main(("evaluate", *arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_and_plot(folders, tmp_path, capsys):
    model, base = folders
    prompts, plot = tmp_path / "prompts.jsonl", tmp_path / "kl.svg"
    prompts.write_text('{"id": 1, "category": "prose", "prompt": "the cat"}\n{"id": 2, "prompt": "a dog"}\n')
    code, out, err = run(
        capsys, model, "--against", base, "--prompts", str(prompts), "--max-tokens", "8",
        "--speculative-config", '{"method": "mtp"}', "--plot", str(plot), "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0, err
    assert set(found["acceptance"]) == {"all", "prose", "none"} and found["kl"]["mean"] > 0
    assert plot.read_text().startswith("<svg")


def test_tables(folders, tmp_path, capsys):
    model, base = folders
    text = tmp_path / "text.txt"
    text.write_text("some words to read " * 3)
    code, out, _ = run(capsys, model, "--against", base, "--text", str(text))
    assert code == 0
    for part in ("KL divergence, mean", "top-1 agreement", "perplexity, model", "linear attention", "0"):
        assert part in out
    assert "category" not in out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("MODEL",), "--against"),
        (("MODEL", "--against", "nowhere"), "nowhere"),
        (("MODEL", "--against", "BASE", "--text", "nowhere.txt"), "nowhere.txt"),
        (("MODEL", "--against", "BASE", "--plot", "kl.png"), "SVG"),
        (("MODEL", "--against", "BASE", "--speculative-config", "{"), "--speculative-config"),
        (("MODEL", "--against", "BASE", "--max-tokens", "0"), "--max-tokens"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(folders, capsys, arguments, part):
    places = dict(zip(("MODEL", "BASE"), folders, strict=True))
    code, out, err = run(capsys, *(places.get(argument, argument) for argument in arguments))
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert part in err


def test_bad_lines_of_prompts_are_refused(folders, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": 1}\n')
    code, _, err = run(capsys, folders[0], "--against", folders[1], "--prompts", str(prompts))
    assert code == 2 and "prompt" in err

"""The commands over a real, tiny, random model: the whole engine behind them, and what bad models get."""

from __future__ import annotations

import json
import shutil

import pytest

from paceline.cli.main import main
from tests.tiny import drafter_for, make_drafter, make_target


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a target (with MTP head and tokenizer) and a DFlash drafter for it."""
    root = tmp_path_factory.mktemp("models")
    return str(make_target(root / "target")), str(make_drafter(root / "drafter", drafter_for("plain")))


@pytest.fixture
def paceline(capsys):
    def run(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def proposers(drafter):
    return {
        "ngram": {"method": "ngram", "prompt_lookup_min": 1},
        "mtp": {"method": "qwen3_5_mtp", "num_speculative_tokens": 2},
        "dflash": {"method": "dflash", "model": drafter},
    }


def test_a_seed_gives_the_same_text_alone_streamed_and_with_every_proposer(paceline, models):
    target, drafter = models
    base = ("generate", target, "--prompt", "one two three", "--max-tokens", "10", "--temperature", "1",
            "--seed", "7")  # fmt: skip
    code, out, _ = paceline(*base, "--json")
    row = json.loads(out)
    assert code == 0 and row["seed"] == 7 and row["usage"]["completion_tokens"] == len(row["token_ids"]) <= 10
    assert row["speculation"]["acceptance_length"] is None
    assert paceline(*base)[1] == row["text"] + "\n"
    for config in proposers(drafter).values():
        code, out, _ = paceline(*base, "--json", "--speculative-config", json.dumps(config))
        assert code == 0 and json.loads(out)["token_ids"] == row["token_ids"]


def test_a_batch_answers_every_line_and_refuses_those_that_cannot_be_served(paceline, models, tmp_path):
    path = tmp_path / "prompts.jsonl"
    prompts = [("a", "one"), ("long", "x" * 5000), ("b", "two")]
    path.write_text("\n".join(json.dumps({"id": i, "prompt": p}) for i, p in prompts))
    code, out, _ = paceline("generate", models[0], "--prompts", str(path), "--json", "--max-tokens", "3")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 2 and [row["id"] for row in rows] == ["a", "long", "b"]
    assert "max_model_len" in rows[1]["error"]
    assert len(rows[0]["token_ids"]) == len(rows[2]["token_ids"]) == 3


@pytest.mark.parametrize("name", ["ngram", "mtp", "dflash"])
def test_verify_proves_identity(paceline, models, name, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "prompt": "abababab"}\n{"id": "b", "prompt": "the cat the cat the"}\n')
    code, out, _ = paceline(
        "verify", models[0], "--speculative-config", json.dumps(proposers(models[1])[name]), "--prompts",
        str(path), "--temperature", "1", "--seeds", "2", "--batch", "2", "--max-tokens", "12", "--json",
    )  # fmt: skip
    report = json.loads(out)
    assert report["divergences"] == [] and report["mode"] == "deterministic"
    assert (report["prompts"], report["seeds"]) == (2, 2)
    assert report["num_drafts"] == sum(report["windows"].values()) > 0
    # Random weights accept next to nothing: without one accepted draft the verdict is "nothing proven".
    assert code == (0 if report["num_accepted_tokens"] else 3)


@pytest.fixture
def broken(models, tmp_path):
    """A copy of the target that a test may damage."""
    return shutil.copytree(models[0], tmp_path / "broken")


def truncate(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def rename_architecture(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (truncate, "model.safetensors"),
        (rename_architecture, "gpt2"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), "tokenizer"),
        (lambda folder: (folder / "generation_config.json").write_text("nope"), "generation_config.json"),
    ],
)
def test_a_damaged_model_is_one_line_and_code_2(paceline, broken, damage, part):
    damage(broken)
    refused(paceline("generate", str(broken), "--prompt", "a", "--max-tokens", "1"), part)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--prompt", ""), "empty"),
        (("--prompt", "a" * 5000), "max_model_len"),
        (("--prompt", "a", "--sampling", '{"allowed_token_ids": [99999]}'), "99999"),
        (("--prompt", "a", "--sampling", '{"logprobs": -1}'), "logprobs"),
        (("--prompt", "a", "--sampling", '{"stop": 5}'), "stop"),
        (("--prompt", "a", "--speculative-config", '{"method": "dflash", "model": "/nowhere"}'), "/nowhere"),
        (("--prompt", "a", "--max-num-seqs", "0"), "max_num_seqs"),
    ],
)
def test_a_bad_request_is_one_line_and_code_2(paceline, models, arguments, part):
    refused(paceline("generate", models[0], "--no-chat", *arguments), part)


def test_a_missing_folder_and_a_target_as_drafter_are_refused(paceline, models):
    refused(paceline("generate", "/nowhere/at/all", "--prompt", "a"), "/nowhere/at/all")
    config = json.dumps({"method": "dflash", "model": models[0]})
    refused(paceline("generate", models[0], "--prompt", "a", "--speculative-config", config), "paceline: ")


def test_too_many_drafts_for_the_block_says_how_many_fit(paceline, models):
    config = json.dumps({"method": "dflash", "model": models[1], "num_speculative_tokens": 64})
    refused(
        paceline("generate", models[0], "--prompt", "a", "--speculative-config", config),
        "num_speculative_tokens", "block_size",
    )  # fmt: skip


def refused(outcome, *parts):
    code, out, err = outcome
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1, err
    for part in parts:
        assert part in err

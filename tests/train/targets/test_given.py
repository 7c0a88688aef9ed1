"""Given answers as samples: in the target's ids, cut where the model would begin and end, beside its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from paceline.train.data.shards import Sample, ShardWriter, read_meta, read_samples
from paceline.train.synth.dialogue import Dialogue
from paceline.train.targets import given as module
from paceline.train.targets.given import given, main

TOKENIZER = Path(__file__).parents[3] / "demo/target/tokenizer.json"
ROWS = [
    {
        "messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello!"}],
        "category": "chat",
    },
    {
        "messages": [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "Two and two."},
        ],
        "category": "math",
        "thinking": True,
    },
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(TOKENIZER))


def dialogues(count=1):
    return (Dialogue(row["messages"], row["category"], bool(row.get("thinking"))) for row in ROWS * count)


def texts(tokenizer, sample):
    return [
        tokenizer.decode(ids, skip_special_tokens=False) for ids in (sample.prompt_ids, sample.answer_ids)
    ]


def test_the_prompt_ends_where_the_model_begins_and_the_answer_with_its_end(tokenizer):
    plain, thought = given(dialogues(), tokenizer)
    assert texts(tokenizer, plain) == [
        "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "Hello!<|im_end|>",
    ]  # fmt: skip
    assert texts(tokenizer, thought) == [
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "Two and two.\n</think>\n\n4<|im_end|>",
    ]
    assert [(s.id, s.category, s.thinking, s.finish) for s in (plain, thought)] == [
        ("given/0", "chat", False, "stop"), ("given/1", "math", True, "stop"),
    ]  # fmt: skip


def test_groups_are_seamless(tokenizer, monkeypatch):
    whole = list(given(dialogues(3), tokenizer))
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    assert list(given(dialogues(3), tokenizer)) == whole and len(whole) == 6


def test_own_and_given_stand_in_one_folder_and_a_second_run_adds_nothing(tmp_path, capsys):
    own = Sample("a", None, False, [1], [2, 3], "stop")
    with ShardWriter(tmp_path / "own", {"vocab_size": 8192, "model_fingerprint": "x"}) as writer:
        writer.write(own)
    lines = tmp_path / "dialogues.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    arguments = [str(lines), str(TOKENIZER.parent), str(tmp_path / "out"), "--own", str(tmp_path / "own")]
    for _ in range(2):
        assert main([*arguments, "--limit", "1"]) == 0
        found = list(read_samples(tmp_path / "out"))
        assert [sample.id for sample in found] == ["a", "given/0"] and found[0] == own
    meta = read_meta(tmp_path / "out")
    assert meta["vocab_size"] == 8192 and "model_fingerprint" not in meta
    assert "2 samples" in capsys.readouterr().out


def refused(capsys, *arguments):
    """The line with which the command refuses."""
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_read_is_told_in_one_line(tmp_path, capsys):
    good, bad, own = tmp_path / "good.jsonl", tmp_path / "bad.jsonl", tmp_path / "own"
    good.write_text(json.dumps(ROWS[0]), encoding="utf-8")
    bad.write_text("\ufeff\n" + json.dumps(ROWS[0]) + '\n{"messages": []}\n', encoding="utf-8")
    for folder, vocab in ((own, 8192), (tmp_path / "other", 100)):
        with ShardWriter(folder, {"vocab_size": vocab}) as writer:
            writer.write(Sample("a", None, False, [1], [2, 3], "stop"))
    out = tmp_path / "out"
    nowhere = tmp_path / "nowhere.jsonl"
    assert str(nowhere) in refused(capsys, nowhere, "demo", tmp_path / "new", "--own", own)
    assert "vocabulary of 100" in refused(capsys, good, "demo", out, "--own", tmp_path / "other")
    assert "no folder of samples" in refused(capsys, good, "demo", out, "--own", tmp_path / "none")
    assert "does not exist" in refused(capsys, good, "nowhere", out, "--own", own)
    assert "bad.jsonl, line 3" in refused(capsys, bad, "demo", tmp_path / "torn", "--own", own)
    assert "negative" in refused(capsys, good, "demo", out, "--own", own, "--limit", "-1")

"""Given answers as samples: in the target's ids, cut where the model would begin and end, beside its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from paceline.train.data.shards import Sample, ShardWriter, read_meta, read_samples
from paceline.train.synth import given as module
from paceline.train.synth.given import given, main

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


def texts(tokenizer, sample):
    return [
        tokenizer.decode(ids, skip_special_tokens=False) for ids in (sample.prompt_ids, sample.answer_ids)
    ]


def test_the_prompt_ends_where_the_model_begins_and_the_answer_with_its_end(tokenizer):
    plain, thought = given(iter(ROWS), tokenizer)
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
    whole = list(given(iter(ROWS * 3), tokenizer))
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    assert list(given(iter(ROWS * 3), tokenizer)) == whole and len(whole) == 6


def test_own_and_given_stand_in_one_folder_and_a_second_run_adds_nothing(tmp_path, capsys):
    own = Sample("a", None, False, [1], [2, 3], "stop")
    with ShardWriter(tmp_path / "own", {"vocab_size": 8192, "model_fingerprint": "x"}) as writer:
        writer.write(own)
    lines = tmp_path / "dialogues.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    arguments = [str(lines), str(TOKENIZER.parent), str(tmp_path / "out"), "--own", str(tmp_path / "own")]
    for _ in range(2):
        main([*arguments, "--limit", "1"])
        found = list(read_samples(tmp_path / "out"))
        assert [sample.id for sample in found] == ["a", "given/0"] and found[0] == own
    meta = read_meta(tmp_path / "out")
    assert meta["vocab_size"] == 8192 and "model_fingerprint" not in meta
    assert "2 samples" in capsys.readouterr().out

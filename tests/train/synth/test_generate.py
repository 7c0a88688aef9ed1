"""Generated dialogues as lines."""

from __future__ import annotations

import json

import pytest

from paceline.train.settings.target import DialogueSource
from paceline.train.synth import generate
from paceline.train.synth.mix import Mix
from paceline.train.targets.corpus import read_dialogues


def test_a_line_is_a_dialogue_that_train_target_reads_as_it_was_made(tmp_path):
    out = tmp_path / "made.jsonl"
    assert generate.main([str(out), "--count", "60", "--seed", "5"]) == 0
    read = list(read_dialogues(DialogueSource(path=str(out), kind="made")))
    made = [Mix(5).at(i) for i in range(60)]
    assert [(d.messages, d.thinking, d.tools) for d in read] == [
        (d.messages, d.thinking, d.tools) for d in made
    ]


def test_a_question_lacks_the_last_answer_alone(tmp_path):
    out = tmp_path / "made.jsonl"
    assert generate.main([str(out), "--count", "9", "--questions", "--weights", "math=1", "code=2"]) == 0
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    mix = Mix(1, {"math": 1, "code": 2})
    assert [row["messages"] for row in rows] == [mix.at(i).prompt for i in range(9)]


def test_prose_is_taken_of_the_novels(tmp_path):
    novel, out = tmp_path / "novel.txt", tmp_path / "made.jsonl"
    novel.write_text("\n\n".join(f"It was the {i}. day of the long rain. " * 9 for i in range(300)))
    assert generate.main([str(out), "--count", "3", "--weights", "prose=1", "--novel", str(novel)]) == 0
    assert {json.loads(text)["category"] for text in out.read_text().splitlines()} == {"prose"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--weights", "math"], "write NAME=SHARE"),
        (["--weights", "math=nan"], "write NAME=SHARE"),
        (["--weights", "math=1", "math=2"], "each name once"),
        (["--weights", "maths=1"], "'math'"),
        (["--novel", "absent.txt", "--weights", "prose=1"], "cannot read a novel"),
        (["--weights", "prose=1"], "no generator 'prose'"),
    ],
)
def test_what_cannot_be_made_is_told(tmp_path, capsys, words, told):
    out = tmp_path / "made.jsonl"
    assert generate.main([str(out), *words]) == 2
    assert told in capsys.readouterr().err and not out.exists()


def test_what_stood_there_stays_where_nothing_can_be_made(tmp_path, capsys):
    out = tmp_path / "made.jsonl"
    out.write_text("before")
    empty = tmp_path / "novel.txt"
    empty.write_text("")
    assert generate.main([str(out), "--weights", "prose=1", "--novel", str(empty)]) == 2
    assert "hold no passages" in capsys.readouterr().err and out.read_text() == "before"
    assert generate.main([str(tmp_path / "absent" / "made.jsonl"), "--count", "1"]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.jsonl", "novel.txt"]


def test_a_novel_that_nothing_takes_from_is_told(tmp_path, capsys):
    novel = tmp_path / "novel.txt"
    novel.write_text("\n\n".join("It was a day of long rain. " * 9 for _ in range(300)))
    assert generate.main([str(tmp_path / "made.jsonl"), "--novel", str(novel)]) == 2
    assert "has no effect" in capsys.readouterr().err

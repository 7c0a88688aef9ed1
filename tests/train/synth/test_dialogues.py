"""Dialogues that a model writes itself, and which of them are worth learning from."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

from paceline.train.synth import curate
from paceline.train.synth.dialogues import Dialogues, main, starters
from tests.tiny_dense import TinyDense, make_dense


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return make_dense(tmp_path_factory.mktemp("writer"), TinyDense("llama", num_hidden_layers=1))


def test_starters_are_a_function_of_the_seed():
    first = list(islice(starters(3), 200))
    assert first == list(islice(starters(3), 200)) != list(islice(starters(4), 200))
    assert {"open", "coding", "math", "prose"} <= {category for category, _ in first}


def test_parts_are_written_and_read_back(writer, tmp_path):
    made = Dialogues(writer, tmp_path, slots=4, seed=0, device="cpu")
    asked = [("math", "one and one"), ("coding", "a loop"), ("open", "hello")]
    answers = made.own(asked, seconds=60)
    assert sorted(a.prompt.key for a in answers) == [0, 1, 2]
    assert {a.prompt.temperature for a in answers} == {0.0, 0.7}
    made.save("own", answers, kept=False)
    made.save("brief", answers, kept=True)
    with np.load(tmp_path / "own.npz") as own, np.load(tmp_path / "brief.npz") as brief:
        assert sorted(own["number"].tolist()) == [0, 1, 2]
        at = own["number"].tolist().index(answers[0].prompt.key)
        ids = own["ids"][own["offsets"][at] : own["offsets"][at + 1]]
        assert tuple(ids.tolist()) == answers[0].ids
        assert brief["stopped"].all()


@pytest.mark.parametrize("part", ["brief", "own"])
def test_an_answer_is_numbered_by_its_own_prompt(writer, tmp_path, part):
    """Whatever the order in which prompts are asked: an answer to another question teaches nonsense."""
    made = Dialogues(writer, tmp_path, slots=2, seed=0, device="cpu")
    asked = [("math", "one and one"), ("coding", "a loop"), ("open", "hello"), ("open", "a story")]
    answers = getattr(made, part)(asked, seconds=60)
    assert len(answers) == len(asked)
    for answer in answers:
        assert asked[answer.prompt.key][1] in made.tokenizer.decode(answer.prompt.ids)


def save_part(folder, tokenizer, rows):
    """rows: (number, text, stopped)."""
    ids = [[*tokenizer.encode(text).ids, 2] for _, text, _ in rows]
    np.savez(
        folder / "brief.npz",
        number=np.array([n for n, _, _ in rows]),
        heat=np.zeros(len(rows), np.float16),
        stopped=np.array([s for _, _, s in rows]),
        offsets=np.cumsum([0, *map(len, ids)]),
        ids=np.array([i for row in ids for i in row], np.uint16),
    )


def test_what_is_cut_or_loops_or_stands_in_the_benchmark_is_left_out(writer, tmp_path):
    from tokenizers import Tokenizer

    (tmp_path / "tokenizer.json").write_text((writer / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    measured = json.loads(curate.BENCH.read_text().splitlines()[0])["prompt"]
    questions = ["good one", "cut one", "a loop", measured, "good two"]
    lines = [json.dumps({"category": "open", "prompt": q}) for q in questions]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    plain, loop = "a fine answer to that", "so it goes and goes on and on again " * 12
    rows = [(0, plain, True), (1, plain, False), (2, loop, True), (3, plain, True), (4, plain, True)]
    save_part(tmp_path, tokenizer, rows)
    kept = list(curate.worthwhile(tmp_path, "brief", "Short.", curate.bench()))
    assert [line["messages"][1]["content"] for line in kept] == ["good one", "good two"]
    assert kept[0]["messages"][0] == {"role": "system", "content": "Short."}
    assert kept[0]["messages"][2]["content"] == plain
    asked = list(islice(curate.questions([tmp_path], [], curate.bench(), seed=1), 12))
    spoken = [line["messages"][0]["content"] for line in asked[0:8:2]]
    assert spoken == ["good one", "cut one", "a loop", "good two"]
    assert all(line["messages"][-1]["role"] in ("user", "tool") for line in asked)


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "cannot be read"), ("", "is empty"), ('{"category": "a"}\n', "line 1"), ("x\n", "line 1")],
)
def test_questions_are_read_before_anything_is_loaded(tmp_path, capsys, text, told):
    path = tmp_path / "q.jsonl"
    if text is not None:
        path.write_text(text)
    assert main(["/no/model", str(tmp_path / "out"), "--questions", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_a_missing_folder_leaves_what_stands(tmp_path):
    (tmp_path / "dialogues.jsonl").write_text("kept\n")
    with pytest.raises(SystemExit):
        curate.main([str(tmp_path / "missing"), "--out", str(tmp_path)])
    assert (tmp_path / "dialogues.jsonl").read_text() == "kept\n"

"""Questions behind long conversations."""

from __future__ import annotations

import json

import pytest

from paceline.train.synth import longer


def line(*texts, **more):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], **more}


def test_the_question_comes_last_behind_whole_turns(tmp_path):
    dialogues, questions, out = (tmp_path / name for name in ("d.jsonl", "q.jsonl", "out.jsonl"))
    earlier = [line(f"question {i} " * 9, f"answer {i} " * 30, category="open") for i in range(9)]
    dialogues.write_text("".join(json.dumps(row) + "\n" for row in earlier))
    asked = [
        line("what is it?", category="math"),
        line("with tools", tools=[{"type": "function"}]),
        line("two", "turns", "already"),
        line("and this?", category="open", thinking=True),
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in asked))
    longer.main([str(dialogues), str(questions), "--out", str(out), "--count", "5"])
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert [(r["category"], r["messages"][-1]["content"]) for r in rows] == [
        ("math", "what is it?"),
        ("open", "and this?"),
    ]
    assert rows[1]["thinking"]
    for row in rows:
        assert [m["role"] for m in row["messages"]] == ["user", "assistant"] * (len(row["messages"]) // 2) + [
            "user"
        ]
        assert sum(len(m["content"]) for m in row["messages"]) > longer.SHORTEST


def test_a_line_may_hold_any_character_and_a_file_blank_lines(tmp_path):
    dialogues, out = tmp_path / "d.jsonl", tmp_path / "out.jsonl"
    row = json.dumps(line("one\u2028two\u0085", "an answer " * 99), ensure_ascii=False)
    dialogues.write_text(row + "\n\n" + row + "\n", encoding="utf-8")
    assert longer.main([str(dialogues), str(dialogues), "--out", str(out)]) == 0
    (first, _) = (json.loads(text) for text in out.read_text(encoding="utf-8").split("\n") if text)
    assert first["messages"][0]["content"] == "one\u2028two\u0085"
    with pytest.raises(SystemExit):
        longer.main([str(dialogues), str(dialogues), "--out", str(out), "--count", "-1"])


def test_an_answered_question_stays_a_dialogue_and_its_system_message_first(tmp_path):
    dialogues, questions, out = (tmp_path / name for name in ("d.jsonl", "q.jsonl", "out.jsonl"))
    dialogues.write_text(json.dumps(line("before " * 20, "an answer " * 60)) + "\n")
    asked = line("what is it?", "it is this", category="math")
    asked["messages"].insert(0, {"role": "system", "content": "Be short."})
    questions.write_text(json.dumps(asked) + "\n")
    assert longer.main([str(dialogues), str(questions), "--out", str(out)]) == 0
    (row,) = [json.loads(text) for text in out.read_text().splitlines()]
    assert row["messages"][0]["role"] == "system" and row["messages"][-2:] == asked["messages"][1:]
    roles = [m["role"] for m in row["messages"][1:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) and len(roles) > 2


@pytest.mark.parametrize(
    ("dialogues", "questions", "told"),
    [
        ("", [line("q")], "d.jsonl holds no line"),
        ([{"messages": [{"role": "system", "content": "only this"}]}], [line("q")], "d.jsonl holds no line"),
        ([line("a question alone")], [line("q")], "end with an answer"),
        ([{"messages": [{"role": "user", "content": ["a", "list"]}]}], [line("q")], "d.jsonl, line 1"),
        ([line("q", "a")], "", "q.jsonl holds no line"),
        ("no json\n", [line("q")], "d.jsonl, line 1"),
        ([line("q", "a")], [{"prompt": "q"}], "q.jsonl, line 1"),
        (None, [line("q")], "cannot be read"),
    ],
)
def test_what_cannot_be_taken_is_told(tmp_path, capsys, dialogues, questions, told):
    for name, rows in (("d.jsonl", dialogues), ("q.jsonl", questions)):
        if rows is not None:
            text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / name).write_text(text)
    args = [str(tmp_path / "d.jsonl"), str(tmp_path / "q.jsonl"), "--out", str(tmp_path / "out.jsonl")]
    assert longer.main(args) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()

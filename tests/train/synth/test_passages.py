"""Questions about passages of texts."""

from __future__ import annotations

import json
import lzma
import random

import pytest

from paceline.train.synth import curate, passages

PLAIN = "The river runs past the mill and the old bridge, where children fish on summer evenings. " * 4


def test_a_question_holds_whole_paragraphs_and_no_listing(tmp_path):
    text = "\n\n".join(
        [f"{PLAIN}It was day {'x' * (i + 1)}." for i in range(12)] + ["a[0] = {1: 2}; ++i;" * 9]
    )
    (tmp_path / "t.txt.xz").write_bytes(lzma.compress(text.encode()))
    out = tmp_path / "q.jsonl"
    passages.main([str(tmp_path / "t.txt.xz"), "--out", str(out), "--count", "6"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 6
    for row in rows:
        assert "It was day x" in row["prompt"] and "a[0]" not in row["prompt"] and "{p}" not in row["prompt"]
        assert passages.SHORTEST < len(row["prompt"]) < passages.LONGEST + 200


def test_markup_ends_a_passage():
    marked = f"{PLAIN}\n\nSee ``this`` and :func:`that`. {PLAIN}\n\n{PLAIN}"
    found = list(passages.passages(marked, random.Random(0)))
    assert all("``" not in passage for passage in found)


def test_the_same_seed_asks_the_same():
    text = "\n\n".join([PLAIN] * 9)
    assert list(passages.questions([text], 3)) == list(passages.questions([text], 3))


def test_benchmark_prompts_are_not_asked():
    bench = [json.loads(line)["prompt"] for line in curate.BENCH.read_text().splitlines()]
    long = [prompt for prompt in bench if passages.SHORTEST < len(prompt) < passages.LONGEST]
    texts = ["\n\n".join([prompt.replace("\n", " ")] * 2) for prompt in long]
    texts = [text for text in texts if any(passages.passages(text, random.Random(0)))]
    assert len(texts) > 5
    assert not list(passages.questions(texts, 0))


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [("no.txt", None, "cannot read"), ("t.xz", b"no xz", "cannot read"), ("t.txt", b"a\n", "no passage")],
)
def test_texts_without_passages_are_told(tmp_path, capsys, name, data, told):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(SystemExit):
        passages.main([str(tmp_path / name), "--out", str(tmp_path / "q.jsonl")])
    assert told in capsys.readouterr().err and not (tmp_path / "q.jsonl").exists()

"""Sources as passages: documents, dialogues, answers of another model, and what is held out."""

from __future__ import annotations

import json
import lzma

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from paceline.errors import ConfigError
from paceline.train.modules.vocabulary import MARKS, MASK
from paceline.train.settings.target import NewTokenizer
from paceline.train.targets.corpus import END_OF_TEXT, passages, split_of
from paceline.train.targets.tokenizer import eos_ids, read_tokenizer, train_tokenizer
from tests.train.targets.small import SENTENCES, settings, write_corpus


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path)
    return tmp_path


def only(folder, **source):
    nothing = {"text": None, "dialogues": None, "synth": None}
    return list(passages(settings(folder, **{**nothing, **source})))


def test_documents_end_with_their_mark_and_are_learnt_whole(corpus):
    found = only(corpus, text=[{"path": str(corpus / "text.txt"), "kind": "t", "repeat": 2}])
    assert (
        len(found) == 12
        and found[0].text == SENTENCES[0] + "".join(SENTENCES[j % 4] for j in range(1, 6)) + END_OF_TEXT
    )
    assert all(p.pieces[0].learn and (p.kind, p.repeat) == ("t", 2) for p in found)


def test_a_compressed_file_and_a_folder_read_alike(corpus):
    raw = (corpus / "text.txt").read_bytes()
    (corpus / "many").mkdir()
    (corpus / "many" / "text.txt.xz").write_bytes(lzma.compress(raw))
    plain, packed = (
        [p.text for p in only(corpus, text=[{"path": str(corpus / name), "kind": "t"}])]
        for name in ("text.txt", "many")
    )
    assert plain == packed


def test_a_long_text_is_cut_at_blank_lines_and_nothing_is_lost(corpus):
    paragraph = "word " * 400 + "\n\n"
    (corpus / "long.txt").write_text(paragraph * 120, encoding="utf-8")
    found = only(corpus, text=[{"path": str(corpus / "long.txt"), "kind": "t"}])
    assert len(found) == 3
    assert all(p.text.startswith("word word") for p in found)
    assert sum(p.text.count("word") for p in found) == 400 * 120


def test_dialogues_learn_the_answer_alone(corpus):
    found = only(corpus, dialogues=[{"path": str(corpus / "chats.jsonl"), "kind": "c"}])
    learnt = ["".join(piece.text for piece in p.pieces if piece.learn) for p in found]
    assert len(found) == 40 and learnt[0] == "You want 0: 0 it is.<|im_end|>"
    assert "Say 0." in found[0].text and "</think>" in learnt[1]


def test_answers_of_another_model_come_back_as_text(corpus):
    other = Tokenizer(models.WordLevel({"red": 0, "blue": 1, "sky": 2}, unk_token="red"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    other.save(str(corpus / "tokenizer.json"))
    lines = [json.dumps({"category": "open", "prompt": f"Question {i}?"}) for i in range(3)]
    (corpus / "prompts.jsonl").write_text("\n".join(lines))
    np.savez(corpus / "brief.npz", number=[2, 0], offsets=[0, 2, 3], ids=np.array([1, 2, 0], np.uint16))
    source = {"folder": str(corpus), "tokenizer": str(corpus), "kind": "small"}
    found = only(corpus, answers=[source])
    assert [("Question 2?" in found[0].text, "blue sky" in found[0].text), "red" in found[1].text] == [
        (True, True),
        True,
    ]
    with pytest.raises(ConfigError, match="answers: cannot read"):
        only(corpus, answers=[{**source, "part": "own"}])
    for line in ('{"question": "?"}', '{"prompt": 3}', "[1]", "{"):
        (corpus / "prompts.jsonl").write_text("\n".join([lines[0], line]))
        with pytest.raises(ConfigError, match=r'prompts\.jsonl, line 2: needs \{"prompt": "a text"\}'):
            only(corpus, answers=[source])
    (corpus / "prompts.jsonl").write_text("\n".join(lines[:2]))
    with pytest.raises(ConfigError, match=r"brief\.npz does not belong to the 2 lines of prompts\.jsonl"):
        only(corpus, answers=[source])


def test_rules_make_both_splits(corpus):
    found = only(corpus, synth=[{"count": 5, "held_out": 3, "weights": {"arithmetic": 1}}])
    assert [p.split for p in found] == ["train"] * 5 + ["held_out"] * 3
    again = only(corpus, synth=[{"count": 5, "held_out": 3, "weights": {"arithmetic": 1}}])
    assert [p.text for p in found] == [p.text for p in again]
    with pytest.raises(ConfigError, match="use 'arithmetic'"):
        only(corpus, synth=[{"count": 5, "weights": {"arithmetics": 1}}])


def test_the_split_is_a_matter_of_the_text_alone():
    texts = [f"text {i}" for i in range(2000)]
    held = {t for t in texts if split_of(t, 0.1) == "held_out"}
    assert 150 < len(held) < 250
    assert held <= {t for t in texts if split_of(t, 0.2) == "held_out"}, "a larger share adds to it"
    assert not any(split_of(t, 0.0) == "held_out" for t in texts)


def test_a_new_tokenizer_has_the_marks_and_loses_nothing(tmp_path):
    tokenizer = train_tokenizer(SENTENCES * 20, NewTokenizer(vocab_size=330))
    assert tokenizer.get_vocab_size() <= 330
    marks = [END_OF_TEXT, "<|im_start|>", "<|im_end|>", *MARKS, MASK]
    assert [tokenizer.token_to_id(mark) for mark in marks] == list(range(len(marks)))
    text = "Größe 17 € \t\n\n  def f(x):\n    return x² <think>\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert eos_ids(tokenizer) == (0, 2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path).get_vocab_size() == tokenizer.get_vocab_size()


def test_a_tokenizer_without_turns_is_refused(tmp_path):
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"has no token <\|endoftext\|>"):
        read_tokenizer(tmp_path)

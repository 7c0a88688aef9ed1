"""What is packed: every token once, weights where the model is to learn, batches by their number."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from paceline.train.synth.render import Piece
from paceline.train.targets.corpus import Passage
from paceline.train.targets.rows import PackedRows, Tokens

LETTERS = {letter: i for i, letter in enumerate("abcdefghij")}


@pytest.fixture(scope="module")
def letters():
    """A tokenizer of one id a letter."""
    tokenizer = Tokenizer(models.WordLevel(LETTERS, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return tokenizer


def text(words, kind="text", repeat=1):
    return Passage((Piece(words, True),), kind, "train", repeat)


def chat(prompt, answer, kind="chat"):
    return Passage((Piece(prompt, False), Piece(answer, True), Piece("a", False)), kind, "train")


def test_texts_go_on_in_further_stretches_and_dialogues_lose_their_end(letters):
    tokens = Tokens([text("abcdefghij"), chat("abc", "defg"), chat("abcd", "ef")], letters, 4)
    stretches = [tokens.stretch(n) for n in range(len(tokens.sizes))]
    assert [ids.tolist() for ids, _ in stretches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert [learn.tolist() for _, learn in stretches[2:]] == [[True, True], [False, False, False, True]]
    assert tokens.kinds == {"text": [0, 1, 2], "chat": [3]}, "the dialogue that is all prompt is left out"
    assert tokens.count() == {"text": 10, "chat": 4}


def test_weights_mark_answers_prompts_and_what_nothing_precedes(letters):
    tokens = Tokens([chat("abc", "de"), text("fgh")], letters, 12)
    rows = PackedRows(tokens, 1, 0.25, seed=0)
    batch = rows.row_batch([np.array([0, 1])])
    assert batch.ids[0].tolist() == [0, 1, 2, 3, 4, 0, 5, 6, 7, 0, 0, 0]
    assert batch.documents[0].tolist() == [1] * 6 + [2] * 3 + [0] * 3
    assert batch.weights[0].tolist() == [0, 0.25, 0.25, 1, 1, 0.25, 0, 1, 1, 0, 0, 0]


def test_an_epoch_deals_every_stretch_as_often_as_it_is_repeated(letters):
    tokens = Tokens([text("abc"), text("defgh", repeat=3), text("ij"), chat("ab", "cd")], letters, 8)
    rows = PackedRows(tokens, 1, 0.0, seed=5)
    dealt = [row.tolist() for row in rows.packed]
    assert sorted(n for row in dealt for n in row) == [0, 1, 1, 1, 2, 3]
    seen = np.concatenate(
        [rows.batch(i).ids[0][rows.batch(i).documents[0] > 0].numpy() for i in range(len(rows))]
    )
    assert len(seen) == sum(tokens.count().values()) == 3 + 15 + 2 + 5
    only = PackedRows(tokens, 1, 0.0, seed=5, kind="chat")
    assert [row.tolist() for row in only.packed] == [[3]]


def test_a_batch_is_a_function_of_its_number(letters):
    made = [text("abcdefgh"[: 3 + i % 5]) for i in range(40)]
    one, other = (PackedRows(Tokens(made, letters, 8), 3, 0.0, seed=7) for _ in range(2))
    numbers = [0, len(one), 3, 1]
    for number in numbers:
        assert one.batch(number).ids.equal(other.batch(number).ids)
    epochs = [
        [tuple(r) for i in range(len(one)) for r in one.batch(e * len(one) + i).ids.tolist()] for e in (0, 1)
    ]
    assert epochs[0] != epochs[1] and set(epochs[0]) == set(epochs[1])
    assert not one.batch(0).ids.equal(PackedRows(one.tokens, 3, 0.0, seed=8).batch(0).ids)

"""A hybrid out of a dense decoder, and the smaller vocabulary that it reads."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer

from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.registry import load_target
from paceline.train.modules.convert import kept_layers
from paceline.train.modules.load import load_train_target
from paceline.train.modules.vocabulary import MARKS, MASK, truncated
from paceline.train.targets.convert import convert_folder
from tests.tiny_dense import TinyDense, make_dense

TURNS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIALS = [*TURNS, *(f"<|spare_{i}|>" for i in range(9))]
BYTES = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", "<", ">", "_", "/", "|"]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("o", "r")]


def write_bpe(path, merges=MERGES):
    tokens = [*SPECIALS, *BYTES, *("".join(m) for m in merges)]
    added = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, t in enumerate(SPECIALS)
    ]  # fmt: skip
    model = {
        "type": "BPE",
        "vocab": {t: i for i, t in enumerate(tokens)},
        "merges": [list(m) for m in merges],
    }
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    raw = {"version": "1.0", "added_tokens": added, "pre_tokenizer": split, "decoder": split, "model": model}
    path.write_text(json.dumps(raw))
    return len(tokens)


@pytest.fixture
def dense(tmp_path):
    folder = tmp_path / "dense"
    shape = TinyDense("llama", num_hidden_layers=6, tie_word_embeddings=True)
    make_dense(folder, shape, tokenizer=False)
    write_bpe(folder / "tokenizer.json")
    return folder


def test_first_and_last_layer_stay():
    assert kept_layers(4, 10) == [0, 3, 6, 9]
    assert kept_layers(16, 30)[0] == 0 and kept_layers(16, 30)[-1] == 29
    assert len(set(kept_layers(16, 30))) == 16
    assert kept_layers(1, 5) == [0]


def test_the_hybrid_keeps_embeddings_and_feed_forward_layers(dense, tmp_path):
    out = tmp_path / "hybrid"
    convert_folder(dense, out, layers=4, interval=4, vocab=48, positions=256)
    old, new = load_train_target(dense), load_train_target(out)
    assert torch.equal(new.embed_tokens.weight, old.embed_tokens.weight[:48].bfloat16().float())
    for i, block in zip(kept_layers(4, 6), new.layers, strict=True):
        kept = old.layers[i].mlp.down_proj.weight
        assert torch.equal(block.mlp.down_proj.weight, kept.bfloat16().float())
    assert [block.full for block in new.layers] == [False, False, False, True]
    assert new.eos_ids == (0, 2) or 2 in new.eos_ids
    assert load_target(out).spec.vocab_size == 48  # the engine takes it


def test_attention_sees_what_it_saw(dense, tmp_path):
    """One kept attention layer alone: the half-open gate and the doubled output matrix cancel, so the hybrid
    differs from the dense layer by its head norms only."""
    out = tmp_path / "hybrid"
    hybrid = convert_folder(dense, out, layers=1, interval=1, vocab=48, positions=64)
    block = hybrid.layers[0]
    x = torch.randn(1, 5, hybrid.hidden_size)
    rope = hybrid._rope(torch.arange(5))
    query, gate, _, _ = block.self_attn.project(block.input_layernorm(x), rope)
    assert torch.equal(gate, torch.zeros_like(gate))
    heads = torch.randn_like(query)
    old = load_train_target(dense).layers[0]
    torch.testing.assert_close(
        block.self_attn.finish(heads, gate), old.self_attn.o_proj(heads.flatten(-2)), rtol=1e-4, atol=1e-4
    )
    assert torch.allclose(block.input_layernorm(x), old.input_layernorm(x), atol=1e-4)


def test_a_hybrid_is_not_converted_again(dense, tmp_path):
    convert_folder(dense, tmp_path / "hybrid", layers=4, interval=4, vocab=48, positions=64)
    with pytest.raises(UnsupportedModelError, match="a hybrid already"):
        convert_folder(tmp_path / "hybrid", tmp_path / "again", 4, 4, 48, 64)


def test_a_truncated_vocabulary_spells_what_it_lacks(tmp_path):
    size = write_bpe(tmp_path / "tokenizer.json")
    full = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    small = truncated(tmp_path / "tokenizer.json", size - 3)  # without ing, in, or
    text = "the thing or the"
    assert small.decode(small.encode(text).ids) == text
    assert full.encode("ing").tokens == ["ing"] and small.encode("ing").tokens == ["i", "n", "g"]
    assert small.encode("the the").ids == full.encode("the the").ids
    assert max(small.get_vocab().values()) == size - 4


def test_the_marks_of_the_chat_format_are_single_visible_tokens(tmp_path):
    size = write_bpe(tmp_path / "tokenizer.json")
    small = truncated(tmp_path / "tokenizer.json", size)
    for mark in MARKS:
        assert len(small.encode(mark).ids) == 1
        assert small.decode(small.encode(mark).ids) == mark
    assert small.decode(small.encode(MASK).ids) == ""
    assert small.encode(TURNS[2]).ids == [2]


def test_ids_that_do_not_follow_the_merges_cannot_be_cut(tmp_path):
    write_bpe(tmp_path / "tokenizer.json")
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    raw["model"]["merges"].reverse()
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="order of merges"):
        truncated(tmp_path / "tokenizer.json", 40)

"""Targets in training form: equal to the engine on the same folder, blind across documents, and the same
token by token in a rollout."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.llm import LLM
from paceline.train.data.rollout import Prompt, Rollout
from paceline.train.modules.layers import document_mask, flex_document_mask
from paceline.train.modules.load import load_train_target
from tests.tiny import make_target
from tests.tiny_dense import DENSE, make_dense


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")
    hybrid = make_target(root / "hybrid", "three", dtype=torch.float32)
    dense = {name: make_dense(root / name, shape) for name, shape in DENSE.items()}
    return {"hybrid": hybrid, **dense}


KINDS = ["hybrid", *DENSE]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_the_engines(folders, kind):
    ids = torch.randint(3, 90, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    target = load_train_target(folders[kind])
    llm = LLM(str(folders[kind]), dtype="float32", device="cpu", max_model_len=128)
    served = llm.teacher_forced_logits(ids)
    llm.close()
    trained = target.logits(target(torch.tensor([ids]))[0])[0]
    torch.testing.assert_close(trained, served, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_do_not_see_one_another(folders, kind):
    target = load_train_target(folders[kind])
    first, second = torch.randint(3, 90, (1, 37)), torch.randint(3, 90, (1, 50))
    packed = torch.cat([first, second], 1)
    documents = torch.tensor([[0] * 37 + [1] * 50])
    taps = (0, target.num_layers - 1)
    hidden, features = target(packed, taps, documents)
    alone, alone_features = target(second, taps)
    torch.testing.assert_close(hidden[:, 37:], alone, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(features[:, 37:], alone_features, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_is_greedy_decoding(folders, kind):
    target = load_train_target(folders[kind])
    prompts = [Prompt(i, tuple(range(5 + i, 9 + 3 * i)), 0.0, 9 + i) for i in range(5)]
    answers = {
        a.prompt.key: a for a in Rollout(target, 2, 64, stop_ids=(0,), check_every=4).run(iter(prompts))
    }
    assert set(answers) == set(range(5))
    for prompt in prompts:
        ids = list(prompt.ids)
        while len(ids) < len(prompt.ids) + prompt.max_tokens and not (
            len(ids) > len(prompt.ids) and ids[-1] == 0
        ):
            ids.append(int(target.logits(target(torch.tensor([ids]))[0][0, -1]).argmax()))
        assert answers[prompt.key].ids == tuple(ids[len(prompt.ids) :])


def test_the_block_mask_is_the_dense_mask():
    documents = torch.tensor([[0] * 8 + [1] * 17 + [2] * 7, [3] * 5 + [1] * 20 + [0] * 7])
    dense = document_mask(documents)
    blocks = flex_document_mask(documents, block=8)
    b, q, k = torch.meshgrid(torch.arange(2), torch.arange(32), torch.arange(32), indexing="ij")
    inside = blocks.mask_mod(b, torch.zeros_like(b), q, k)
    assert torch.equal(inside, dense[:, 0])
    visited = blocks.to_dense().repeat_interleave(8, -1).repeat_interleave(8, -2)[:, 0].bool()
    assert not (dense[:, 0] & ~visited).any()
    assert (blocks.to_dense()[:, 0].sum((1, 2)) == torch.tensor([7, 10])).all()

"""What a rollout draws. That its greedy answers are the target's is tested with the targets."""

from __future__ import annotations

import pytest
import torch

from paceline.train.data.rollout import Prompt, Rollout, choose
from paceline.train.modules.load import load_train_target
from tests.tiny_dense import DENSE, make_dense

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 2.5, 9.0])


class Head:
    """A target of which only the logits are asked: LOGITS times each row's hidden number."""

    def logits(self, hidden):
        return hidden * LOGITS.to(hidden)


def drawn(rows, heat, min_p=0.0, vocab=5):
    """`rows` ids at one temperature; the likeliest of LOGITS lies outside of the vocabulary."""
    noise = torch.rand(rows, vocab, generator=torch.Generator().manual_seed(0))
    return choose(Head(), torch.ones(rows, 1), noise, torch.full((rows,), heat), min_p)


@pytest.mark.parametrize("heat", [0.5, 1.0, 2.0])
def test_shares_are_the_softmax(heat):
    shares = torch.bincount(drawn(40_000, heat), minlength=5) / 40_000
    torch.testing.assert_close(shares, (LOGITS[:5] / heat).softmax(0), rtol=0, atol=0.01)


def test_without_heat_it_is_the_likeliest_inside_the_vocabulary():
    assert drawn(1000, 0.0).unique().tolist() == [1]
    assert drawn(1000, 0.0, min_p=0.3).unique().tolist() == [1]


@pytest.mark.parametrize(("heat", "kept"), [(1.0, [1, 2, 4]), (3.0, [0, 1, 2, 4]), (0.5, [1, 4])])
def test_min_p_is_a_share_of_the_likeliest(heat, kept):
    shares = torch.bincount(drawn(40_000, heat, min_p=0.3), minlength=5) / 40_000
    weights = (LOGITS[:5] / heat).softmax(0)
    weights[weights < 0.3 * weights.max()] = 0
    assert weights.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(shares, weights / weights.sum(), rtol=0, atol=0.01)
    assert (shares[weights == 0] == 0).all()


def test_rows_have_their_own_temperature():
    noise = torch.rand(20_000, 5, generator=torch.Generator().manual_seed(0))
    heat = torch.tensor([0.0, 50.0]).repeat(10_000)
    ids = choose(Head(), torch.ones(20_000, 1), noise, heat, 0.0)
    assert (ids[::2] == 1).all()
    assert (torch.bincount(ids[1::2], minlength=5) > 1_500).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    shape = next(iter(DENSE))
    return make_dense(tmp_path_factory.mktemp("rollout") / shape, DENSE[shape])


@pytest.fixture(scope="module")
def target(folder):
    return load_train_target(folder)


def test_answers_stay_in_the_vocabulary_and_in_their_length(target):
    prompts = [Prompt(i, tuple(range(3, 6 + i)), 20.0, 12) for i in range(6)]
    rollout = Rollout(target, 4, 16, stop_ids=(), vocab=20, check_every=3)
    answers = {a.prompt.key: a for a in rollout.run(iter(prompts))}
    assert sorted(answers) == list(range(6))
    for key, answer in answers.items():
        assert len(answer.ids) == min(12, 16 - len(prompts[key].ids)) and not answer.stopped
        assert all(0 <= i < 20 and type(i) is int for i in answer.ids)
    assert len({i for a in answers.values() for i in a.ids}) > 10


def test_choosing_is_one_graph(target):
    hidden, noise = target(torch.arange(3, 9).view(2, 3))[0][:, -1], torch.rand(2, 20)
    arguments = (target, hidden, noise, torch.tensor([0.0, 1.0]), 0.1)
    compiled = torch.compile(choose, fullgraph=True, dynamic=False, backend="eager")
    assert torch.equal(compiled(*arguments), choose(*arguments))


@pytest.mark.gpu
def test_compiled_choice_equals_the_plain_one():
    torch.manual_seed(0)
    hidden, noise = torch.randn(512, 1, device="cuda").bfloat16(), torch.rand(512, 5, device="cuda")
    heat = torch.rand(512, device="cuda") * (torch.arange(512, device="cuda") % 3)
    got = torch.compile(choose, dynamic=False)(Head(), hidden, noise, heat, 0.1)
    assert (got == choose(Head(), hidden, noise, heat, 0.1)).float().mean() > 0.99


@pytest.mark.gpu
def test_a_captured_rollout_takes_the_likeliest(folder, target):
    """In half precision and by the kernels; near-ties may go either way, so a token's distance from the
    likeliest is what counts."""
    fast = load_train_target(folder, "cuda", torch.bfloat16)
    fast.compile_decode()
    prompts = [Prompt(i, tuple(range(5 + i, 9 + 3 * i)), 0.0, 20) for i in range(12)]
    rollout = Rollout(fast, 4, 64, stop_ids=(0,), check_every=4)
    answers = list(rollout.run(iter(prompts)))
    assert sorted(a.prompt.key for a in answers) == list(range(12))
    for answer in answers:
        ids = torch.tensor([[*answer.prompt.ids, *answer.ids]])
        logits = target.logits(target(ids)[0])[0, len(answer.prompt.ids) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer.ids).unsqueeze(1)).squeeze(1)
        assert ((logits.amax(1) - chosen) / logits.std(1)).max() < 0.2

"""The loss in parts is the loss of all logits at once, gradients included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.train.targets.loss import language_loss, next_tokens


def whole(hidden, table, labels, weights, teacher):
    """All logits at once."""
    logp = F.linear(hidden, table).log_softmax(-1)
    ce = F.nll_loss(logp.flatten(0, 1), labels.flatten(), reduction="none").view_as(weights)
    kl = torch.zeros_like(ce)
    if teacher is not None:
        wanted = F.linear(teacher[0], teacher[1]).log_softmax(-1)
        kl = F.kl_div(logp, wanted, reduction="none", log_target=True).sum(-1)
    return torch.stack([(ce * weights).sum(), (kl * weights).sum()]) / weights.sum()


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("rows", [3, 7, 100], ids=["many parts", "a rest", "one part"])
def test_parts_equal_the_whole(rows, taught):
    torch.manual_seed(0)
    hidden, table = torch.randn(2, 6, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    labels, weights = torch.randint(0, 11, (2, 6)), torch.rand(2, 6).round(decimals=1)
    teacher = (torch.randn(2, 6, 5), torch.randn(11, 5)) if taught else None
    found = language_loss(hidden, table, labels, weights, rows, teacher=teacher)
    expected = whole(hidden, table, labels, weights, teacher)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad(found.sum(), (hidden, table)),
        torch.autograd.grad(expected.sum(), (hidden, table)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    assert (found[1] > 0) == taught


def test_nothing_to_predict_is_a_loss_of_zero():
    hidden, table = torch.randn(1, 4, 8), torch.randn(11, 8)
    none = language_loss(hidden, table, torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4), 2)
    assert none.tolist() == [0.0, 0.0]


def test_labels_are_the_next_tokens_and_carry_their_own_weights():
    """A shift of the weights against the labels would teach prompts, or miss the first token of an answer."""
    ids, weights = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    labels, theirs = next_tokens(ids, weights)
    assert labels[0, :3].tolist() == [6, 7, 8]
    assert theirs.tolist() == [[0.0, 1.0, 1.0, 0.0]]

"""The loss in parts is the loss of all logits at once, gradients included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.train.targets.loss import avoiding_sums, head_sums, language_loss, next_tokens


def whole(hidden, table, labels, weights, teacher):
    """All logits at once."""
    logp = F.linear(hidden, table).log_softmax(-1)
    ce = F.nll_loss(logp.flatten(0, 1), labels.flatten(), reduction="none").view_as(weights)
    kl = torch.zeros_like(ce)
    if teacher is not None:
        wanted = F.linear(teacher[0], teacher[1]).log_softmax(-1)
        kl = F.kl_div(logp, wanted, reduction="none", log_target=True).sum(-1)
    return torch.stack([(ce * weights).sum(), (kl * weights).sum()]) / weights.sum()


@pytest.mark.parametrize("chunk", [head_sums, avoiding_sums])
@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("rows", [3, 7, 100], ids=["many parts", "a rest", "one part"])
def test_parts_equal_the_whole(rows, taught, chunk):
    torch.manual_seed(0)
    hidden, table = torch.randn(2, 6, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    labels, weights = torch.randint(0, 11, (2, 6)), torch.rand(2, 6).round(decimals=1)
    teacher = (torch.randn(2, 6, 5), torch.randn(11, 5)) if taught else None
    found = language_loss(hidden, table, labels, weights, rows, chunk, teacher)
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


def test_a_negative_weight_makes_its_label_unlikely():
    """-log(1 - p), and what is learnt beside it is as it was."""
    torch.manual_seed(0)
    hidden, table = torch.randn(1, 3, 8), torch.randn(11, 8, requires_grad=True)
    labels, weights = torch.tensor([[4, 5, 6]]), torch.tensor([[1.0, -2.0, 0.0]])
    found = language_loss(hidden, table, labels, weights, 2, avoiding_sums)[0]
    p = F.linear(hidden, table).softmax(-1)[0]
    expected = (-p[0, 4].log() - 2.0 * (1.0 - p[1, 5]).log()) / 3.0
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        table -= 0.1 * torch.autograd.grad(found, table)[0]
    after = F.linear(hidden, table).softmax(-1)[0]
    assert after[0, 4] > p[0, 4] and after[1, 5] < p[1, 5]


def test_the_surest_label_is_unlearnt_at_full_strength():
    """1 - p is 1e-22 here, of which fp32 sees nothing: -log(1 - p) is 50, and its slope one."""
    hidden = torch.tensor([[[50.0]]], requires_grad=True)
    table = torch.tensor([[1.0], [0.0]])
    loss = language_loss(hidden, table, torch.tensor([[0]]), torch.tensor([[-1.0]]), 1, avoiding_sums)[0]
    loss.backward()
    assert loss.item() == pytest.approx(50.0) and hidden.grad.item() == pytest.approx(1.0)


def test_labels_are_the_next_tokens_and_carry_their_own_weights():
    """A shift of the weights against the labels would teach prompts, or miss the first token of an answer."""
    ids, weights = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    labels, theirs = next_tokens(ids, weights)
    assert labels[0, :3].tolist() == [6, 7, 8]
    assert theirs.tolist() == [[0.0, 1.0, 1.0, 0.0]]

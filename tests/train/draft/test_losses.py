"""The chunked loss equals the plain one in values and gradients; weights are the formulas' by hand."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.train.draft import losses
from paceline.train.draft.losses import LossShape, block_loss, block_loss_reference, position_weights

SHAPES = {
    "decay": LossShape("decay", 4.0, 0.5),
    "even": LossShape("decay", None, 0.5),
    "kl": LossShape("kl", 3.0, 0.5),
    "dpace": LossShape("dpace", None, 0.5),
}


def case(blocks: int = 7, width: int = 3) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    hidden = torch.randn(blocks, width, 8, requires_grad=True)
    table = torch.randn(11, 8)
    labels = torch.randint(0, 11, (blocks, width))
    with torch.no_grad():  # half of them right, so that chains exist
        best = (hidden @ table.T).argmax(-1)
    labels = torch.where(torch.rand(blocks, width) < 0.6, best, labels)
    valid = torch.rand(blocks, width) < 0.8
    return hidden, table, labels, valid, torch.randn(blocks, width, 8)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", [1, 6, 1000])
def test_chunks_equal_the_reference(name: str, rows: int) -> None:
    hidden, table, labels, valid, teacher = case()
    taught = teacher if name == "kl" else None
    got = block_loss(hidden, table, labels, valid, taught, SHAPES[name], rows)
    (gradient,) = torch.autograd.grad(3 * got.mean, hidden)
    want = block_loss_reference(hidden, table, labels, valid, taught, SHAPES[name])
    (expected,) = torch.autograd.grad(3 * want.mean, hidden)
    for part in ("total", "weight", "accepted", "right"):
        assert torch.allclose(getattr(got, part), getattr(want, part), rtol=1e-5), part
    assert torch.allclose(gradient, expected, atol=1e-6) and gradient.abs().sum() > 0


def test_no_more_logits_than_a_chunk_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, table, labels, valid, _ = case(blocks=9)
    sizes, real = [], losses.head_chunk

    def spy(shape: LossShape) -> losses.HeadChunk:
        def run(part: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            sizes.append(part.shape[:2].numel())
            return real(shape)(part, *others)  # type: ignore[arg-type]

        return run

    monkeypatch.setattr(losses, "head_chunk", spy)
    block_loss(hidden, table, labels, valid, None, SHAPES["decay"], 7)
    assert sum(sizes) == 27 and max(sizes) <= 7


def test_invalid_guesses_change_nothing() -> None:
    hidden, table, labels, valid, _ = case()
    other = torch.where(valid, labels, (labels + 1) % 11)
    for shape in (SHAPES["decay"], SHAPES["dpace"]):
        before, after = (block_loss(hidden, table, x, valid, None, shape) for x in (labels, other))
        assert torch.equal(before.mean, after.mean) and torch.equal(before.accepted, after.accepted)


def test_a_batch_without_labels_has_no_loss_and_no_gradient() -> None:
    hidden, table, labels, valid, _ = case()
    parts = block_loss(hidden, table, labels, torch.zeros_like(valid), None, SHAPES["dpace"])
    (gradient,) = torch.autograd.grad(parts.mean, hidden)
    assert parts.mean == 0 and not gradient.any()


def test_weights_by_hand() -> None:
    right, valid = torch.tensor([0.5, 0.1, 0.9]), torch.tensor([True, True, False])
    decay = position_weights(right, valid, SHAPES["decay"])
    assert decay.tolist() == pytest.approx([1, math.exp(-1 / 4), 0])
    # alpha .5: q = .75, .55; reach .75, .75 x .55; a guess weighs all that lies behind it
    assert position_weights(right, valid, SHAPES["dpace"]).tolist() == pytest.approx(
        [0.75 + 0.4125, 0.4125, 0]
    )
    sharp = LossShape("dpace", None, 0.0)
    assert position_weights(right, torch.ones(3, dtype=torch.bool), sharp).tolist() == pytest.approx(
        [0.5 + 0.05 + 0.045, 0.05 + 0.045, 0.045]
    )


def test_the_kl_loss_is_zero_for_the_teacher_itself() -> None:
    hidden, table, labels, valid, _ = case()
    parts = block_loss(hidden, table, labels, valid, hidden.detach(), SHAPES["kl"])
    (gradient,) = torch.autograd.grad(parts.mean, hidden)
    assert abs(float(parts.mean.detach())) < 1e-6 and gradient.abs().max() < 1e-6

"""The loss of blocks of guesses against what the target wrote, or against its own distribution.

Let q_k be the probability that guess k of a block gives to the true token, k = 1 .. K.

decay   cross-entropy, weight of guess k: exp(-(k - 1) / gamma)              (DFlash, arXiv 2602.06036, 4)
kl      KL(target || drafter) over the vocabulary, weights as in decay
dpace   cross-entropy, weight of guess j: sum over m >= j of prod over i <= m of ((1 - alpha) q_i + alpha),
        detached: how much of the expected acceptance hangs on guess j       (D-PACE, arXiv 2605.18810)

Each is a weighted mean over all valid guesses of the batch. The output matrix is frozen, so the gradient with
respect to the hidden rows is made chunk by chunk in the forward pass: logits of all blocks never exist at
once, and none is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

LossKind = Literal["decay", "kl", "dpace"]
HeadChunk = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class LossShape:
    """Which loss, and its constants."""

    kind: LossKind
    gamma: float | None
    """Fall of the weights of decay and kl; None: all guesses weigh the same."""
    alpha: float
    """Smoothing of D-PACE's probabilities."""


@dataclass(frozen=True, slots=True)
class LossParts:
    """Sums over a batch, all 0-dim fp32; their ratio is the loss."""

    total: Tensor
    """Sum of weight x loss; carries the graph."""
    weight: Tensor
    """Sum of weights."""
    accepted: Tensor
    """Sum over blocks of how many guesses in a row, from the first, are the drafter's best ids."""
    right: Tensor
    """How many valid guesses are the drafter's best ids."""

    @property
    def mean(self) -> Tensor:
        """The loss; 0 for a batch without a valid guess."""
        return self.total / self.weight.clamp(min=1e-6)


def position_weights(right: Tensor, valid: Tensor, shape: LossShape) -> Tensor:
    """Weights [..., K] of guesses with probabilities `right` [..., K] of the true tokens; 0 where not
    `valid`."""
    if shape.kind == "dpace":
        # No chain goes on behind a token that is no label.
        soft = ((1 - shape.alpha) * right.detach() + shape.alpha) * valid
        return soft.cumprod(-1).flip(-1).cumsum(-1).flip(-1) * valid
    if shape.gamma is None:
        return valid.to(right.dtype)
    k = torch.arange(right.shape[-1], device=right.device)
    return torch.exp(-k / shape.gamma) * valid


def block_loss(
    hidden: Tensor,
    table: Tensor,
    labels: Tensor,
    valid: Tensor,
    teacher: Tensor | None,
    shape: LossShape,
    chunk_rows: int = 2048,
    chunk: HeadChunk | None = None,
) -> LossParts:
    """Loss of guesses hidden [M, K, H] through the output matrix `table` [V, H] in the same dtype.

    labels, valid [M, K]; teacher [M, K, H]: the target's final hidden rows that predict the same tokens (kl
    only). chunk_rows: guesses whose logits exist at once; chunk: `head_chunk` of the shape, compiled.
    """
    blocks, width = labels.shape
    parts = -(-blocks // max(1, chunk_rows // width))
    step = -(-blocks // parts)
    args = (table, labels, valid, teacher, step, chunk or head_chunk(shape))
    return LossParts(*_ChunkedHead.apply(hidden, *args))


def block_loss_reference(
    hidden: Tensor, table: Tensor, labels: Tensor, valid: Tensor, teacher: Tensor | None, shape: LossShape
) -> LossParts:
    """`block_loss` with all logits at once and autograd's own gradients."""
    logits = F.linear(hidden, table).float()
    logp = logits.log_softmax(-1)
    ce = -logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    weights = position_weights(torch.exp(-ce.detach()), valid, shape)
    loss = ce
    if shape.kind == "kl":
        assert teacher is not None
        wanted = F.linear(teacher, table).float().log_softmax(-1)
        loss = (wanted.exp() * (wanted - logp)).sum(-1)
    hit = (logits.argmax(-1) == labels) & valid
    accepted = hit.long().cumprod(-1).sum().float()
    return LossParts((loss * weights).sum(), weights.sum(), accepted, hit.sum().float())


def head_chunk(shape: LossShape) -> HeadChunk:
    """The work on one chunk of blocks: (hidden, table, labels, valid, teacher) -> the four sums of
    `LossParts` [4], and the gradient of the first one, like hidden.

    Both losses have the same gradient in the logits, softmax minus what is wanted: the true token, or the
    target's distribution.
    """

    def run(
        hidden: Tensor, table: Tensor, labels: Tensor, valid: Tensor, teacher: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logits = F.linear(hidden, table).float()
        logp = logits - logits.logsumexp(-1, keepdim=True)
        true = labels.unsqueeze(-1)
        loss = -logp.gather(-1, true).squeeze(-1)
        weights = position_weights(torch.exp(-loss), valid, shape)
        grad = logp.exp()
        if teacher is not None:
            wanted = F.linear(teacher, table).float()
            wanted = wanted - wanted.logsumexp(-1, keepdim=True)
            loss = (wanted.exp() * (wanted - logp)).sum(-1)
            grad = grad - wanted.exp()
        else:
            ids = torch.arange(table.shape[0], device=labels.device)
            grad = grad - (ids == true).to(grad.dtype)
        grad = (grad * weights.unsqueeze(-1)).to(hidden.dtype)
        hit = (logits.argmax(-1) == labels) & valid
        accepted = hit.long().cumprod(-1).sum().float()
        return torch.stack([(loss * weights).sum(), weights.sum(), accepted, hit.sum().float()]), grad @ table

    return run


class _ChunkedHead(torch.autograd.Function):
    """Sums of `head_chunk` over chunks of blocks; the gradient is ready before backward asks for it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        labels: Tensor,
        valid: Tensor,
        teacher: Tensor | None,
        step: int,
        chunk: HeadChunk,
    ) -> tuple[Tensor, ...]:
        hidden = hidden.detach()
        sums = torch.zeros(4, device=hidden.device)
        grad = torch.empty_like(hidden)
        for at in range(0, labels.shape[0], step):
            part = slice(at, at + step)
            taught = None if teacher is None else teacher[part]
            more, grad[part] = chunk(hidden[part], table, labels[part], valid[part], taught)
            sums = sums + more
        ctx.save_for_backward(grad)
        total, *others = sums.unbind()
        ctx.mark_non_differentiable(*others)
        return total, *others

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None, None, None, None, None

"""Next-token loss through an output matrix that is trained, logits a part at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Chunk = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
"""(hidden [N, H], table [V, H], labels [N], weights [N], teacher hidden [N, H'], teacher table [V, H']) ->
weighted sums of cross-entropy and of KL(teacher || student), [2]. A negative weight asks for the opposite
of its label: |w| × -log(1 - p), and no KL; only `avoiding_sums` knows such."""


def next_tokens(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and weights [B, T] at the positions that predict: those of the token one further on."""
    return F.pad(ids[:, 1:], (0, 1)), F.pad(weights[:, 1:], (0, 1))


def head_sums(
    hidden: Tensor,
    table: Tensor,
    labels: Tensor,
    weights: Tensor,
    taught: Tensor | None,
    other: Tensor | None,
) -> Tensor:
    """One chunk; see `Chunk`. Matrices are multiplied in the dtype of `hidden`, the rest is fp32."""
    return _sums(_logits(hidden, table), labels, weights, taught, other)


def avoiding_sums(
    hidden: Tensor,
    table: Tensor,
    labels: Tensor,
    weights: Tensor,
    taught: Tensor | None,
    other: Tensor | None,
) -> Tensor:
    """`head_sums` where weights may be negative; costs one more pass over the logits."""
    logits, learnt = _logits(hidden, table), weights.clamp(min=0.0)
    avoided = (_log_others(logits, labels) * (learnt - weights)).sum()
    loss, kl = _sums(logits, labels, learnt, taught, other)
    return torch.stack([loss - avoided, kl])


def _logits(hidden: Tensor, table: Tensor) -> Tensor:
    return F.linear(hidden, table.to(hidden.dtype)).float()


def _sums(
    logits: Tensor, labels: Tensor, weights: Tensor, taught: Tensor | None, other: Tensor | None
) -> Tensor:
    logp = logits - logits.logsumexp(-1, keepdim=True)
    loss = -(logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1) * weights).sum()
    if taught is None or other is None:
        return torch.stack([loss, torch.zeros_like(loss)])
    wanted = F.linear(taught, other.to(taught.dtype)).float().log_softmax(-1)
    return torch.stack([loss, ((wanted.exp() * (wanted - logp)).sum(-1) * weights).sum()])


def _log_others(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 - p) of each label, [N]: the other ids' share. From 1 - p itself the surest labels, which need it
    most, would have no gradient: in fp32 nothing is left of it."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    others = logits.masked_fill(ids == labels.unsqueeze(-1), float("-inf"))
    return others.logsumexp(-1) - logits.logsumexp(-1)


def language_loss(
    hidden: Tensor,
    table: Tensor,
    labels: Tensor,
    weights: Tensor,
    rows: int,
    chunk: Chunk = head_sums,
    teacher: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Weighted means of cross-entropy and of KL to the teacher, [2].

    hidden [B, T, H], table [V, H], labels and weights [B, T]; teacher: its hidden rows [B, T, H'] and its
    table [V, H']. Logits of `rows` tokens exist at once; backward makes them again.
    """
    flat, label, weight = hidden.flatten(0, 1), labels.flatten(), weights.flatten()
    taught = None if teacher is None else teacher[0].flatten(0, 1)
    other = None if teacher is None else teacher[1]
    total = torch.zeros(2, device=hidden.device)
    for at in range(0, len(label), rows):
        part = slice(at, at + rows)
        theirs = None if taught is None else taught[part]
        total = total + checkpoint(
            chunk,
            flat[part],
            table,
            label[part],
            weight[part],
            theirs,
            other,
            use_reentrant=False,
            preserve_rng_state=False,  # reading the state would wait for the device
        )
    return total / weight.abs().sum().clamp(min=1e-6)

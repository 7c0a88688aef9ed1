"""Reference measurement of acceptance on held-out text, with full forwards and no serving code.

The target's continuation of a prefix is fixed first. Verification accepts a draft exactly when it equals the
token that the target would have produced, so walking along that continuation gives the same rounds as real
decoding, and at temperature > 0 the same as coupled verification with drafts by arg max.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.train.dflash import Drafter, block_inputs
from paceline.train.generate import continue_rows
from paceline.train.mtp import MTPHead
from paceline.train.target import Target


@dataclass(slots=True)
class Acceptance:
    """Counts over rounds of ``n`` drafts."""

    n: int
    rounds: int = 0
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accepted = [0] * self.n

    def add(self, right: Tensor) -> int:
        """Count one round from right [n] bool; returns how many drafts were accepted."""
        count = int(right.long().cumprod(0).sum())
        self.rounds += 1
        for j in range(count):
            self.accepted[j] += 1
        return count

    def record(self) -> dict[str, Any]:
        """acceptance_length = 1 + accepted / rounds; per_position = share of rounds that accepted draft j."""
        rounds = max(1, self.rounds)
        return {
            "rounds": self.rounds,
            "acceptance_length": round(1 + sum(self.accepted) / rounds, 3),
            "per_position": [round(a / rounds, 3) for a in self.accepted],
        }


def walk(right: Tensor, first: int, stats: Acceptance) -> None:
    """Decode along one sequence: right [T, n] says which drafts of a round anchored at row s hit; s starts
    at first."""
    at = first
    while at + stats.n < right.shape[0]:
        at += stats.add(right[at]) + 1


@torch.no_grad()
def dflash_hits(target: Target, drafter: Drafter, ids: Tensor, features: Tensor, first: int) -> Tensor:
    """[B, T, B' - 1] bool: draft j of a block anchored at each position from ``first`` on equals ids at
    anchor + j."""
    d, (rows, length) = drafter.config, ids.shape
    size = d.block_size
    right = torch.zeros(rows, length, size - 1, dtype=torch.bool, device=ids.device)
    table = target.embed_tokens.weight.to(target.compute)
    for start in range(first, length - size + 1, 32):
        stop = min(start + 32, length - size + 1)
        anchors = torch.arange(start, stop, device=ids.device).expand(rows, -1)
        block = block_inputs(ids, anchors, table, d.mask_token_id, size)
        drafts = target.logits(drafter(features, anchors, block)[:, :, 1:]).argmax(-1)
        at = anchors.unsqueeze(-1) + torch.arange(1, size, device=ids.device)
        right[:, start:stop] = drafts == ids.gather(1, at.flatten(1)).view_as(at)
    return right


@torch.no_grad()
def mtp_hits(target: Target, head: MTPHead, ids: Tensor, hidden: Tensor, steps: int) -> Tensor:
    """[B, T, steps] bool for anchors t_s = ids[s]: step k's draft equals ids at s + k.

    Fed with the true tokens: step k counts only when the steps before it were right, and then its inputs are
    the same.
    """
    outs = head(hidden, target.embed(ids), steps)
    rows = outs[0].shape[1]
    right = torch.zeros(*ids.shape, steps, dtype=torch.bool, device=ids.device)
    for k, out in enumerate(outs, start=1):  # row i drafts for the anchor at i + 1
        right[:, 1 : rows + 1, k - 1] = target.logits(out).argmax(-1) == ids[:, k + 1 : k + 1 + rows]
    return right


def measure(
    target: Target,
    head: MTPHead | None,
    steps: int,
    drafter: Drafter | None,
    prefix: Tensor,
    length: int,
    vocab: int,
    temperature: float,
) -> dict[str, Any]:
    """Acceptance of both proposers on the target's continuations of prefix [B, P] to ``length``."""
    heat = torch.full((prefix.shape[0],), temperature, device=prefix.device)
    gen = torch.Generator(device=prefix.device).manual_seed(1)
    ids = continue_rows(target, prefix, length, lambda _: heat, vocab, gen)
    taps = drafter.config.target_layer_ids if drafter else ()
    first = prefix.shape[1]
    with torch.no_grad():
        hidden, features = target(ids, taps)
    out: dict[str, Any] = {"sequences": ids.shape[0], "new_tokens": length - first}
    runs: list[tuple[str, Tensor, int]] = []
    if head is not None:
        runs.append(("mtp", mtp_hits(target, head, ids, hidden, steps), steps))
    if drafter is not None:
        assert features is not None
        runs.append(
            ("dflash", dflash_hits(target, drafter, ids, features, first), drafter.config.block_size - 1)
        )
    for name, right, n in runs:
        stats = Acceptance(n)
        for row in right.cpu():
            walk(row, first, stats)
        out[name] = stats.record()
    return out

"""The device part of a decode step: verify the windows, keep the accepted rows, tell the proposer.

Pure tensor work of static shapes: nothing here waits for the host, so that the same function runs eagerly
and inside a captured CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from paceline.kernels.sample import lead
from paceline.speculate.base import ChooseTokens, ObservedRows, Proposer
from paceline.speculate.recall import follow
from paceline.speculate.sampler import SampleRows
from paceline.speculate.verify import Accepted, HostAccepted, accept

if TYPE_CHECKING:
    from paceline.layers.batch import FlatBatch
    from paceline.models.base import TargetCache, TargetModel
    from paceline.speculate.sampler import Sampler


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step runs: the models, their tensors and the sampler."""

    target: TargetModel
    cache: TargetCache
    sampler: Sampler
    proposer: Proposer | None

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers that the proposer listens to."""
        return self.proposer.taps if self.proposer else ()


@dataclass(frozen=True, slots=True)
class Verified:
    """A verified step, on the device."""

    accepted: Accepted | HostAccepted
    logits: torch.Tensor
    """[R, V] float32 raw logits of every row."""
    hidden: torch.Tensor
    """[R, H] post-norm hidden of every row."""


def chooser(
    sampler: Sampler,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    method: Literal["greedy", "coupled"],
    recalled: torch.Tensor | None,
) -> ChooseTokens:
    """How drafter logits become drafts for the sequences in `slots` [S] with anchors at `lengths` [S], whose
    texts held `recalled` [S, 1 + n] (`Sequence.recall`) before. Recalled ids are weighed by raw logits: one
    that the request forbids may be drafted, and is then not accepted."""

    def choose(logits: torch.Tensor, first: int, drafted: torch.Tensor) -> torch.Tensor:
        drafts = sampler.draft(logits, slots, lengths, first, drafted, method)
        if recalled is None:
            return drafts
        asked = recalled[:, 1 + first : 1 + first + drafts.shape[1]]
        return follow(drafts, lead(logits, drafts, asked), recalled, drafted)

    return choose


def window_ids(anchors: torch.Tensor, drafts: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
    """[R] ids of the flat window rows: each sequence's anchor [S], then its drafts [S, n].

    Padding rows get the id of some row of their sequence; nothing of them is kept.
    """
    if batch.max_rows == 1 and batch.num_rows == anchors.shape[0]:
        return anchors
    if anchors.device.type == "cpu":
        return _window_ids_on_host(anchors, drafts, batch)
    table = torch.cat([anchors[:, None], drafts], dim=1)
    offset = torch.arange(batch.num_rows, device=anchors.device) - batch.row_start[batch.row_seq]
    return table[batch.row_seq, offset.clamp(0, table.shape[1] - 1)]


def _window_ids_on_host(anchors: torch.Tensor, drafts: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
    """The same in plain Python, to which a few numbers are not worth a tensor operator each."""
    windows = [[anchor, *drafted] for anchor, drafted in zip(anchors.tolist(), drafts.tolist(), strict=True)]
    if batch.num_rows == len(windows) * len(windows[0]):  # every window holds all drafts
        return torch.from_numpy(np.array(windows, np.int64).ravel())
    owners, starts, last = batch.row_seq.tolist(), batch.row_start.tolist(), len(windows[0]) - 1
    ids = [windows[i][min(max(row - starts[i], 0), last)] for row, i in enumerate(owners)]
    return torch.from_numpy(np.array(ids, np.int64))


def verify_windows(
    parts: StepParts,
    batch: FlatBatch,
    anchors: torch.Tensor,
    drafts: torch.Tensor,
    allowed: torch.Tensor | None = None,
) -> Verified:
    """Run the target once over all windows, accept what agrees and hand the rows to the proposer.

    anchors [S] and drafts [S, n] int64; the batch's `row_count` says how many drafts count. allowed [R, V]
    bool: the only ids that each row may give.
    """
    ids = window_ids(anchors, drafts, batch)
    out = parts.target.forward(ids, batch, parts.cache, parts.taps)
    logits = parts.target.logits(out.hidden)
    if parts.sampler.plan.bare and allowed is None:
        sampled = parts.sampler.best(logits)
    else:
        rows = SampleRows.windows(batch.slots, drafts, batch.row_seq, batch.row_start, batch.positions)
        sampled = parts.sampler.sample(logits, rows, allowed)
    accepted = accept(sampled, drafts, batch.row_start, batch.row_count, batch.max_rows)
    if parts.sampler.plan.history or parts.sampler.plan.min_tokens:
        parts.sampler.commit(batch.slots, accepted.tokens, accepted.counts)
    if parts.proposer:
        parts.proposer.observe(
            ObservedRows(batch, out.hidden, out.features, next_ids=sampled, last_rows=accepted.last_rows)
        )
    return Verified(accepted, logits, out.hidden)


@contextmanager
def marked_wait(device: torch.device) -> Iterator[None]:
    """The one place of a decode step where the host may wait for the device.

    With `torch.cuda.set_sync_debug_mode("error")` around a step, any other wait is an error.
    """
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def fetch_accepted(accepted: Accepted | HostAccepted) -> list[list[int]]:
    """Copy the emitted tokens of every sequence to the host, in one transfer."""
    if isinstance(accepted, HostAccepted):
        return accepted.emitted
    packed = torch.cat([accepted.counts[:, None], accepted.tokens], dim=1)
    with marked_wait(packed.device):
        rows = packed.tolist()
    return [row[1 : 1 + row[0]] for row in rows]

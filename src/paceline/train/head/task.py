"""Training a multi-token head: what the loop calls at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.train.data.batches import PADDING_DOCUMENT, SampleBatches, TokenBatch
from paceline.train.draft.anchors import Anchors, block_labels, document_starts, draw_anchors
from paceline.train.draft.features import Captured, FeatureSource
from paceline.train.draft.losses import HeadChunk, LossShape, block_loss, head_chunk
from paceline.train.draft.task import Export, Guesses, Judge, teacher_rows
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.mtp import MTPHead


class HeadTask:
    """Training of a head on packed rows of the target's own answers, its own output fed back."""

    name = "mtp"

    def __init__(
        self,
        head: MTPHead,
        target: TrainTarget,
        batches: SampleBatches,
        features: FeatureSource,
        loss: LossShape,
        *,
        steps: int,
        num_anchors: int,
        head_rows: int,
        device: torch.device,
        compute: torch.dtype,
        export: Export,
        judge: Judge | None = None,
    ) -> None:
        """features must give the target's final hidden rows; export writes the module's folder, judge
        measures one."""
        self.head = head.to(device)
        self.module: nn.Module = self.head
        self.steps_per_epoch = batches.steps_per_epoch()
        self._target, self._batches, self._features = target, batches, features
        self._shape, self._steps, self._num_anchors, self._head_rows = loss, steps, num_anchors, head_rows
        self._device, self._export, self._judge = device, export, judge
        self._table = target.head_weight.detach().to(device, compute)
        self._chunk: HeadChunk = head_chunk(loss)

    @property
    def measures(self) -> bool:
        """Whether there are held-out prompts."""
        return self._judge is not None

    def compile(self) -> None:
        """Compile the head, the target's layers, and the work on a chunk of logits."""
        self.head.compile(dynamic=False)
        self._target.compile_blocks()
        self._chunk = torch.compile(self._chunk, dynamic=False)

    def batch(self, step: int, rank: int, world: int) -> TokenBatch:
        """Packed rows on the device."""
        return self._batches.batch(step * world + rank).to(self._device)

    def loss(self, batch: Any, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of guesses from fresh random anchors; logs as `DrafterTask.loss` does."""
        assert isinstance(batch, TokenBatch)
        captured = self._features(batch)
        anchors = head_anchors(batch, self._num_anchors, generator)
        guesses = self.guesses(batch, captured, anchors)
        labels = guesses.labels
        parts = block_loss(
            guesses.hidden.flatten(0, 1),
            self._table,
            labels.ids.flatten(0, 1),
            labels.valid.flatten(0, 1),
            teacher_rows(captured.hidden, labels) if self._shape.kind == "kl" else None,
            self._shape,
            self._head_rows,
            self._chunk,
        )
        return parts.mean, {
            "weight": parts.weight,
            "tokens": (batch.documents != PADDING_DOCUMENT).sum(),
            "acceptance": 1 + parts.accepted / anchors.valid.sum().clamp(min=1),
            "accuracy": parts.right / labels.valid.sum().clamp(min=1),
        }

    def guesses(self, tokens: TokenBatch, captured: Captured, anchors: Anchors) -> Guesses:
        """Run the head from `anchors`."""
        assert captured.hidden is not None
        labels = block_labels(tokens.ids, tokens.loss_mask, tokens.documents, anchors, self._steps)
        positions = torch.arange(tokens.ids.shape[1], device=tokens.ids.device) - document_starts(
            tokens.documents
        )
        hidden = self.head(
            captured.hidden,
            self._target.embed(tokens.ids),
            self._target.embed(labels.ids[..., :-1]),
            anchors.positions.clamp(min=1),
            positions,
            committed_mask(anchors, tokens.ids.shape[1]),
        )
        return Guesses(hidden, labels, anchors)

    def export(self, folder: Any) -> None:
        """Write the published head."""
        self._export(self.head, folder)

    def evaluate(self, folder: Any) -> dict[str, float]:
        """Serving acceptance of an exported head; empty without held-out prompts."""
        return {} if self._judge is None else self._judge(folder)


def head_anchors(batch: TokenBatch, count: int, generator: torch.Generator | None) -> Anchors:
    """Anchors as of blocks, without those that begin a document: no hidden row stands before them."""
    follows = torch.zeros_like(batch.loss_mask)
    follows[:, 1:] = batch.documents[:, 1:] == batch.documents[:, :-1]
    return draw_anchors(batch.loss_mask & follows, batch.documents, count, generator)


def committed_mask(anchors: Anchors, length: int) -> Tensor:
    """[B, N, T] bool: the rows that an anchor's first guess sees, from the second of its document up to its
    own; the first position has no row. An anchor that is not valid sees row 1, so that its softmax exists."""
    key = torch.arange(length, device=anchors.positions.device)
    position, start = anchors.positions.unsqueeze(-1), anchors.starts.unsqueeze(-1)
    seen = (key > start) & (key <= position)
    return torch.where(anchors.valid.unsqueeze(-1), seen, key == 1)

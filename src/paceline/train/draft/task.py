"""Training a DFlash drafter: what the loop calls at every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.train.data.batches import PADDING_DOCUMENT, SampleBatches, TokenBatch
from paceline.train.draft.anchors import Anchors, BlockLabels, block_labels, block_positions, draw_anchors
from paceline.train.draft.features import Captured, FeatureSource
from paceline.train.draft.losses import HeadChunk, LossParts, LossShape, block_loss, head_chunk
from paceline.train.draft.masks import draft_mask
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.drafter import Drafter

Export = Callable[[nn.Module, Path], None]
Judge = Callable[[Path], dict[str, float]]


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Tokens, and what the target says of them where that was read from disk."""

    tokens: TokenBatch
    captured: Captured | None = None


@dataclass(frozen=True, slots=True)
class Guesses:
    """A batch's blocks after the drafter: hidden rows [B, N, K, H] that predict `labels`."""

    hidden: Tensor
    labels: BlockLabels
    anchors: Anchors


class DrafterTask:
    """One stage of a drafter's training on packed rows of the target's own answers."""

    name = "drafter"

    def __init__(
        self,
        drafter: Drafter,
        target: TrainTarget,
        batches: SampleBatches,
        features: FeatureSource,
        loss: LossShape,
        *,
        num_anchors: int,
        head_rows: int,
        device: torch.device,
        compute: torch.dtype,
        export: Export,
        judge: Judge | None = None,
        stored: FeatureSource | None = None,
    ) -> None:
        """features: what the loss calls with a batch on the device; stored: instead of it, a source on the
        CPU that is read with the batch. export writes the module's published folder, judge measures one."""
        self.drafter = drafter.to(device)
        self.module: nn.Module = self.drafter
        self.steps_per_epoch = batches.steps_per_epoch()
        self._target, self._batches, self._features, self._stored = target, batches, features, stored
        self._shape, self._num_anchors, self._head_rows = loss, num_anchors, head_rows
        self._device, self._compute = device, compute
        self._export, self._judge = export, judge
        self._table = target.head_weight.detach().to(device, compute)
        self._chunk: HeadChunk = head_chunk(loss)

    @property
    def measures(self) -> bool:
        """Whether there are held-out prompts."""
        return self._judge is not None

    def compile(self) -> None:
        """Compile the drafter's layers, the target's, and the work on a chunk of logits."""
        self.drafter.compile_layers()
        self._target.compile_blocks()
        self._chunk = torch.compile(self._chunk, dynamic=False)

    def batch(self, step: int, rank: int, world: int) -> DraftBatch:
        """Packed rows on the device."""
        tokens = self._batches.batch(step * world + rank)
        if self._stored is None:
            return DraftBatch(tokens.to(self._device))
        said = self._stored(tokens)
        moved = replace(said, **{name: _moved(getattr(said, name), self) for name in ("features", "hidden")})
        return DraftBatch(tokens.to(self._device), moved)

    def loss(self, batch: Any, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of fresh random blocks; logs the share of right guesses and how many in a row are right
        after a true beginning (serving goes on after its own tokens; see `evaluate`)."""
        assert isinstance(batch, DraftBatch)
        tokens = batch.tokens
        captured = batch.captured or self._features(tokens)
        anchors = draw_anchors(tokens.loss_mask, tokens.documents, self._num_anchors, generator)
        guesses = self.guesses(tokens, captured, anchors)
        parts = self._parts(guesses, captured)
        blocks, valid = anchors.valid.sum().clamp(min=1), guesses.labels.valid.sum().clamp(min=1)
        return parts.mean, {
            "weight": parts.weight,
            "tokens": (tokens.documents != PADDING_DOCUMENT).sum(),
            "acceptance": 1 + parts.accepted / blocks,
            "accuracy": parts.right / valid,
        }

    def guesses(self, tokens: TokenBatch, captured: Captured, anchors: Anchors) -> Guesses:
        """Run the drafter over the blocks of `anchors`."""
        spec, (batch, length) = self.drafter.spec, tokens.ids.shape
        size = spec.block_size
        assert captured.features is not None
        masks = tuple(draft_mask(anchors, length, size, kind) for kind in self.drafter.kinds)
        hidden = self.drafter(
            captured.features,
            self._block_rows(tokens.ids, anchors),
            block_positions(tokens.documents, anchors, size),
            masks,
        )
        labels = block_labels(tokens.ids, tokens.loss_mask, tokens.documents, anchors, size - 1)
        return Guesses(hidden.view(batch, -1, size, spec.hidden_size)[:, :, 1:], labels, anchors)

    def export(self, folder: Path) -> None:
        """Write the published drafter."""
        self._export(self.drafter, folder)

    def evaluate(self, folder: Path) -> dict[str, float]:
        """Serving acceptance of an exported drafter; empty without held-out prompts."""
        return {} if self._judge is None else self._judge(folder)

    def _block_rows(self, ids: Tensor, anchors: Anchors) -> Tensor:
        """[B, N * size, H]: the target's embedding of each anchor, then of the mask."""
        spec = self.drafter.spec
        first = self._target.embed(ids.gather(1, anchors.positions)).unsqueeze(2)
        mask_id = torch.full((1,), spec.mask_token_id, dtype=torch.int64, device=ids.device)
        masks = self._target.embed(mask_id).expand(*first.shape[:2], spec.block_size - 1, -1)
        return torch.cat([first, masks], 2).flatten(1, 2)

    def _parts(self, guesses: Guesses, captured: Captured) -> LossParts:
        labels = guesses.labels
        return block_loss(
            guesses.hidden.flatten(0, 1),
            self._table,
            labels.ids.flatten(0, 1),
            labels.valid.flatten(0, 1),
            teacher_rows(captured.hidden, labels) if self._shape.kind == "kl" else None,
            self._shape,
            self._head_rows,
            self._chunk,
        )


def teacher_rows(hidden: Tensor | None, labels: BlockLabels) -> Tensor:
    """[B * N, K, H]: the target's final hidden rows that predict the tokens of `labels`, so those one
    position before them."""
    assert hidden is not None
    batch, count, width = labels.at.shape
    before = (labels.at - 1).flatten(1).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    return hidden.gather(1, before).view(batch * count, width, -1)


def _moved(value: Tensor | None, task: DrafterTask) -> Tensor | None:
    return None if value is None else value.to(task._device, task._compute, non_blocking=True)

"""Training a hybrid on packed texts and dialogues: what the loop calls at every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.train.data.batches import PADDING_DOCUMENT
from paceline.train.modules.base import TrainTarget
from paceline.train.modules.four_bits import Recipe, read_in_four_bits
from paceline.train.modules.hybrid import Hybrid
from paceline.train.modules.load import load_train_target
from paceline.train.settings.target import Distillation
from paceline.train.targets.loss import Chunk, avoiding_sums, head_sums, language_loss, next_tokens
from paceline.train.targets.rows import PackedRows, RowBatch


class TargetTask:
    """Next-token prediction, and a teacher's distribution beside it where there is one."""

    name = "target"

    def __init__(
        self,
        model: Hybrid,
        rows: PackedRows,
        held_out: dict[str, PackedRows],
        *,
        head_rows: int,
        device: torch.device,
        export: Callable[[Hybrid, Path], None],
        held_out_rows: int = 32,
        teacher: TrainTarget | None = None,
        distill: Distillation | None = None,
        four_bits: Recipe | None = None,
    ) -> None:
        """model: its weights are trained, its `compute` is used. held_out: by kind. four_bits: how what is
        exported will be quantised, and so how it is judged."""
        assert (teacher is None) == (distill is None)
        self.model = model.to(device)
        self.module: nn.Module = self.model
        self.steps_per_epoch = len(rows)
        self._rows, self._held_out, self._held_out_rows = rows, held_out, held_out_rows
        self._head_rows, self._device, self._export = head_rows, device, export
        self._teacher, self._four_bits = teacher, four_bits
        self._share = 0.0 if distill is None else distill.weight
        self._chunk: Chunk = avoiding_sums if rows.tokens.avoids else head_sums

    @property
    def measures(self) -> bool:
        """Whether anything is held out."""
        return bool(self._held_out)

    def compile(self) -> None:
        """Compile both models layer by layer, and the work on a part of the logits."""
        self.model.compile_blocks()
        if self._teacher is not None:
            self._teacher.compile_blocks()
        self._chunk = torch.compile(self._chunk, dynamic=False)

    def batch(self, step: int, rank: int, world: int) -> RowBatch:
        """Packed rows on the device."""
        return self._rows.batch(step * world + rank).to(self._device)

    def loss(self, batch: Any, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy in nat a token, mixed with KL from the teacher."""
        assert isinstance(batch, RowBatch)
        hidden, _ = self.model(batch.ids, documents=batch.documents)
        labels, weights = next_tokens(batch.ids, batch.weights)
        table = self.model.head_weight
        both = language_loss(
            hidden, table, labels, weights, self._head_rows, self._chunk, self._taught(batch, table.shape[0])
        )
        loss = (1.0 - self._share) * both[0] + self._share * both[1]
        metrics = {"weight": weights.abs().sum(), "tokens": (batch.documents != PADDING_DOCUMENT).sum()}
        if self._teacher is not None:
            metrics |= {"cross_entropy": both[0], "kl": both[1]}
        return loss, metrics

    def export(self, folder: Path) -> None:
        """Write the published target."""
        self._export(self.model, folder)

    def evaluate(self, folder: Path) -> dict[str, float]:
        """Loss in nat a token and perplexity of the exported weights on what is held out, by kind."""
        model = load_train_target(folder, self._device, self.model.compute)
        if self._four_bits is not None:
            read_in_four_bits(model, self._four_bits)
        found: dict[str, float] = {}
        for kind, rows in self._held_out.items():
            found[f"loss/{kind}"] = held_out_loss(model, rows, self._held_out_rows, self._head_rows)
        if not found:
            return {}
        mean = sum(found.values()) / len(found)
        perplexities = {f"perplexity/{k.partition('/')[2]}": math.exp(v) for k, v in found.items()}
        return {"score": -mean, **found, **perplexities}

    @torch.no_grad()
    def _taught(self, batch: RowBatch, vocab: int) -> tuple[Tensor, Tensor] | None:
        """The teacher's hidden rows, and its table as far as the student's goes."""
        if self._teacher is None:
            return None
        return self._teacher(batch.ids, documents=batch.documents)[0], self._teacher.head_weight[:vocab]


@torch.no_grad()
def held_out_loss(model: TrainTarget, rows: PackedRows, count: int, head_rows: int) -> float:
    """Mean loss in nat a token over the first `count` rows of `rows`, prompts of dialogues aside."""
    device = model.head_weight.device
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for row in rows.packed[:count]:
        batch = rows.row_batch([row]).to(device)
        hidden, _ = model(batch.ids, documents=batch.documents)
        labels, weights = next_tokens(batch.ids, batch.weights)
        weight = weights.sum()
        mean = language_loss(hidden, model.head_weight, labels, weights, head_rows)[0]
        total += torch.stack([mean * weight, weight]).double()
    loss, weight = total.tolist()
    return float(loss / weight)

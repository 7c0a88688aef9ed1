"""Tiny targets, samples and drafters, and the rounds that serving would have made of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.models.registry import load_target, read_target_spec
from paceline.models.spec import DrafterSpec
from paceline.train.data.batches import SampleBatches, TokenBatch
from paceline.train.data.shards import Sample
from paceline.train.draft.features import OnlineFeatures
from paceline.train.draft.initial import new_drafter
from paceline.train.draft.losses import LossShape
from paceline.train.draft.shape import fit_spec
from paceline.train.draft.task import DrafterTask
from paceline.train.modules.drafter import Drafter
from paceline.train.settings.drafter import DrafterShape
from tests.models.harness import Runner

SIZE = 4
SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "block_size": SIZE,
    "target_layer_ids": (0, 2),
    "mask_token_id": 127,
}
SLIDING = {**SHAPE, "layer_types": ("sliding_attention", "full_attention"), "sliding_window": 5}


class EngineTarget:
    """The engine's own model behind the contract of a training target: one document after the other."""

    def __init__(self, folder: Path) -> None:
        self.model = load_target(folder)
        spec = self.model.spec
        self.hidden_size, self.vocab_size, self.num_layers = (
            spec.hidden_size,
            spec.vocab_size,
            spec.num_layers,
        )

    def __call__(
        self, ids: Tensor, taps: tuple[int, ...] = (), documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        documents = torch.ones_like(ids) if documents is None else documents
        hidden = torch.zeros(*ids.shape, self.hidden_size)
        features = torch.zeros(*ids.shape, len(taps) * self.hidden_size)
        for row in range(ids.shape[0]):
            for number in documents[row].unique().tolist():
                here = (documents[row] == number).nonzero().flatten()
                out = Runner(self.model, 1, len(here) + 16).prefill(ids[row, here].tolist(), taps=taps)
                hidden[row, here] = out.hidden
                if out.features is not None:
                    features[row, here] = out.features
        return hidden, features if taps else None

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed(ids.flatten()).view(*ids.shape, -1)

    @property
    def head_weight(self) -> Tensor:
        # logits(e_i) is column i of the output matrix, whatever it is called
        return self.model.logits(torch.eye(self.hidden_size)).T.contiguous()

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)


def samples(count: int = 5, seed: int = 0, prompt: int = 6, answer: int = 14) -> list[Sample]:
    """Random prompts and answers of several lengths."""
    torch.manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(3, 120, (length,)).tolist()

    return [
        Sample(f"s{i}", "prose" if i % 2 else None, False, ids(prompt + i), ids(answer - i % answer), "stop")
        for i in range(count)
    ]


def packed(rows: int = 2, length: int = 48, count: int = 5, seed: int = 0) -> SampleBatches:
    """Batches of the samples."""
    return SampleBatches(samples(count, seed), rows=rows, length=length, pad_id=0, seed=seed)


def one_document(ids: list[int], prompt: int) -> TokenBatch:
    """A row that is one sample, its first `prompt` tokens no answer."""
    at = torch.arange(len(ids))
    return TokenBatch(torch.tensor([ids]), (at >= prompt)[None], torch.ones(1, len(ids), dtype=torch.int64))


def draft_spec(folder: Path, shape: dict[str, Any] = SHAPE) -> DrafterSpec:
    """A drafter's numbers over the target in `folder`."""
    return fit_spec(DrafterShape(**shape), read_target_spec(folder), folder)


def make_task(
    folder: Path,
    target: Any,
    shape: dict[str, Any] = SHAPE,
    *,
    loss: LossShape | None = None,
    batches: SampleBatches | None = None,
    num_anchors: int = 6,
    drafter: Drafter | None = None,
    **changes: Any,
) -> DrafterTask:
    """A drafter, with random weights where none is given, and its task, on the CPU in float32."""
    drafter = drafter or new_drafter(draft_spec(folder, shape), 3)
    settings: dict[str, Any] = {
        "num_anchors": num_anchors,
        "head_rows": 16,
        "device": torch.device("cpu"),
        "compute": torch.float32,
        "export": lambda module, path: None,
        **changes,
    }
    features = OnlineFeatures(target, drafter.spec.target_layer_ids, hidden=True)
    loss = loss or LossShape("decay", 4.0, 0.5)
    return DrafterTask(drafter, target, batches or packed(), features, loss, **settings)


def learn(task: Any, batch: Any, steps: int, rate: float = 3e-3) -> list[float]:
    """A few plain steps on one batch, fresh anchors at each; the losses."""
    optimizer = torch.optim.Adam(task.module.parameters(), lr=rate)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        loss, _ = task.loss(batch, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def rounds(ids: list[int], first: int, guess: Callable[[int], list[int]]) -> tuple[int, list[int]]:
    """Walk along a text as serving does: (verifications that held a draft, how many accepted draft 1, 2 ...).

    first: index of the first answer token, the first anchor; guess gives the drafts of an anchor.
    """
    at, count, accepted = first, 0, [0] * len(guess(first))
    while at + 2 < len(ids):  # the last token comes from the model, so one that is alone is not drafted
        drafts = guess(at)[: len(ids) - at - 2]
        right = 0
        while right < len(drafts) and drafts[right] == ids[at + 1 + right]:
            accepted[right] += 1
            right += 1
        count, at = count + 1, at + right + 1
    return count, accepted

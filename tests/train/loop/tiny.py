"""The smallest task that has everything: a table, a matrix, a norm, random numbers, weights, an export."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from paceline.train.loop.task import Task
from paceline.train.settings.optim import OptimSettings


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed_tokens = nn.Embedding(11, 8)
        self.up = nn.Linear(8, 12, bias=False)
        self.norm = nn.LayerNorm(12)
        self.out = nn.Linear(12, 11)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) * 0.3

    def forward(self, ids, noise):
        x = self.embed_tokens(ids)
        return self.out(self.norm(torch.tanh(self.up(x + noise))))


class TinyTask(Task):
    name = "tiny"
    steps_per_epoch = 6

    def __init__(self, weighted: bool = True, scores: tuple[float, ...] = ()) -> None:
        self.module, self.weighted, self.scores = Net(), weighted, list(scores)
        self.steps_seen: list[int] = []

    @property
    def measures(self) -> bool:
        return bool(self.scores)

    def batch(self, step, rank, world):
        self.steps_seen.append(step)
        generator = torch.Generator().manual_seed(100 + step * world + rank)
        # Batches of unequal size, so that a plain mean over them is not the mean over tokens.
        return torch.randint(0, 11, (2 + (step * world + rank) % 3, 5), generator=generator)

    def loss(self, batch, generator):
        ids, labels = batch[:, :-1], batch[:, 1:]
        noise = torch.randn((*ids.shape, 8), generator=generator) * 0.1
        logits = self.module(ids, noise)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        right = (logits.argmax(-1) == labels).float().mean()
        metrics = {"accuracy": right, "tokens": torch.tensor(ids.numel())}
        if self.weighted:
            metrics["weight"] = torch.tensor(float(labels.numel()))
        return loss, metrics

    def export(self, folder: Path) -> None:
        torch.save({n: p.detach().clone() for n, p in self.module.named_parameters()}, folder / "model.pt")

    def evaluate(self, folder: Path) -> dict[str, float]:
        assert (folder / "model.pt").is_file()
        return {"score": self.scores.pop(0)} if self.scores else {}


def settings(**changes) -> OptimSettings:
    base = {"max_steps": 12, "learning_rate": 0.02, "log_every": 3, "save_every": 4, "warmup_ratio": 0.25}
    return OptimSettings(**{**base, **changes})


def curve(out: Path) -> list[tuple[int, float, float]]:
    """(step, loss, gradient norm) of every logged step, to the last bit."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(m["step"], m["loss"], m["grad_norm"]) for m in lines if "loss" in m]

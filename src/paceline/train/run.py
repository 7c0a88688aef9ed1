"""A configured run: its folders, its device, and what stages share."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.train import export
from paceline.train.config import BudgetConfig, DemoConfig
from paceline.train.target import Target


class Run:
    """One configured run: where things are, what they run on."""

    def __init__(self, config: DemoConfig, corpus_dir: Path, out: Path, device: str = "auto") -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda, but torch sees no GPU: use --device cpu", key="device")
        self.config, self.corpus, self.out = config, corpus_dir, out
        self.device = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
        self.compute = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            # It builds a plan for every new length, which costs more than a whole step of generation.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.stage, self.begin = "", time.perf_counter()
        self._made: Continuations | None = None

    def say(self, text: str) -> None:
        """Progress to stdout."""
        print(f"[{time.perf_counter() - self.begin:6.1f}s] {self.stage}: {text}", flush=True)

    @property
    def model_file(self) -> Path:
        """The target's weights, which also hold the MTP head."""
        return self.out / "target" / "model.safetensors"

    @property
    def drafter_file(self) -> Path:
        """The drafter's weights."""
        return self.out / "drafter" / "model.safetensors"

    def tokens(self) -> dict[str, Tensor]:
        """Encoded streams on the device: train, draft, and held_out:KIND for each kind."""
        path = self.out / "work" / "tokens.npz"
        if not path.is_file():
            raise ConfigError(f"{path} is missing: run the stage 'tokenizer' first", key="out")
        with np.load(path) as data:
            return {
                name: torch.from_numpy(data[name].astype(np.int32)).to(self.device) for name in data.files
            }

    def target(self) -> Target:
        """The exported target, frozen."""
        model = Target(self.config.target, self.compute).to(self.device)
        export.load_weights(model, self.model_file, "model.")
        return model.requires_grad_(False)

    def forget_continuations(self) -> None:
        """New ones are about to be made."""
        self._made = None

    def continuations(self, model: Target, budget: BudgetConfig) -> Continuations:
        """The target's continuations with its states, built at first use."""
        if self._made is None:
            self._made = Continuations(self, model)
        self._made.restart(budget)
        return self._made


class Continuations:
    """Shuffled batches of the generated rows with what the frozen target makes of them, computed once for
    both proposers."""

    def __init__(self, run: Run, model: Target) -> None:
        path = run.out / "work" / "continuations.npz"
        if not path.is_file():
            raise ConfigError(f"{path} is missing: run the stage 'data' first", key="out")
        with np.load(path) as z:
            self.ids = torch.from_numpy(z["ids"].astype(np.int32)).to(run.device)
            self.prefix = torch.from_numpy(z["prefix"].astype(np.int64)).to(run.device)
        self.restart(BudgetConfig(seconds=1.0, max_steps=1, batch_size=64))
        taps, width = run.config.drafter.target_layer_ids, run.config.target.hidden_size
        self.hidden = torch.empty(*self.ids.shape, width, dtype=run.compute, device=run.device)
        self.features = torch.empty(*self.ids.shape, width * len(taps), dtype=run.compute, device=run.device)
        with torch.no_grad():
            for start in range(0, len(self.ids), self.size):
                part = slice(start, start + self.size)
                self.hidden[part], self.features[part] = model(self.ids[part].long(), taps)
        size = (self.hidden.nbytes + self.features.nbytes) / 2**30
        run.say(f"{len(self.ids)} continuations, {size:.1f} GiB of states")

    def restart(self, budget: BudgetConfig) -> None:
        """Begin a stage: its batch size, its seed."""
        self.size = min(budget.batch_size, len(self.ids))
        self.generator = torch.Generator(device=self.ids.device).manual_seed(budget.seed)
        self.order, self.next, self.passes = torch.empty(0), 0, -1

    def batch(self) -> Tensor:
        """Row numbers [size], every row once a pass."""
        if self.next + self.size > self.order.numel():
            self.order = torch.randperm(len(self.ids), device=self.ids.device, generator=self.generator)
            self.next, self.passes = 0, self.passes + 1
        rows = self.order[self.next : self.next + self.size]
        self.next += self.size
        return rows

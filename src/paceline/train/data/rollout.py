"""Rollouts: many answers of one target at once, in slots of a fixed batch whose step is one CUDA graph.

For text by the million tokens. The engine answers a request sooner and with all of its features; a rollout
has no scheduler, no paged cache and no stop strings, and on a GPU a small model yields an order of magnitude
more tokens a second. Greedy rollouts equal the engine's answers up to rounding (tests/train/data).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.train.data.ahead import ahead
from paceline.train.modules.base import TrainTarget

_PREFILL_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to answer and how."""

    key: int
    """The caller's number for it."""
    ids: tuple[int, ...]
    temperature: float = 0.0
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    prompt: Prompt
    ids: tuple[int, ...]
    """The end token included, where one came."""
    stopped: bool
    """Whether the model ended by itself."""


def choose(target: TrainTarget, hidden: Tensor, noise: Tensor, heat: Tensor, min_p: float) -> Tensor:
    """Next ids [S] after hidden [S, H], by the largest of the logits plus Gumbel noise at each row's
    temperature heat [S] (0: the likeliest).

    noise: uniform [S, V], where V is the number of ids that may come; an argument, because a compiled
    generator throws away three of the four numbers that it computes. min_p: ids less likely than this share
    of the likeliest never come. Compiled, the rest is one pass over the logits, a second one for min_p.
    """
    logits, heat = target.logits(hidden)[:, : noise.shape[1]], heat.unsqueeze(1)
    if min_p > 0:
        floor = logits.amax(1, keepdim=True) + heat * math.log(min_p)
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return (logits - heat * (-noise.clamp(1e-9, 1 - 1e-7).log()).log()).argmax(-1)


class Rollout:
    """Answers prompts in `slots` places of at most `length` positions each."""

    def __init__(
        self,
        target: TrainTarget,
        slots: int,
        length: int,
        *,
        stop_ids: Sequence[int],
        vocab: int | None = None,
        min_p: float = 0.0,
        check_every: int = 16,
    ) -> None:
        """vocab: ids from here on are never produced (rows of the table that name no token). min_p: tokens
        less likely than this share of the likeliest are never sampled. check_every: steps between two looks
        at what has finished, because looking waits for the GPU."""
        self.target, self.slots, self.length = target, slots, length
        self.device = target.head_weight.device
        self.vocab = target.vocab_size if vocab is None else vocab
        self.min_p, self.check_every = min_p, check_every
        self._choose: Callable[..., Tensor] = choose
        if self.device.type == "cuda":
            self._choose = torch.compile(choose, dynamic=False)
        self.state = target.rollout_state(slots, length)
        whole = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.ids, self.positions, self.last = whole, whole.clone(), whole.clone()
        self.heat = torch.zeros(slots, device=self.device)
        self.alive = torch.zeros(slots, dtype=torch.bool, device=self.device)
        self.made = torch.zeros(slots, length, dtype=torch.int32, device=self.device)
        self.stops = torch.tensor(list(stop_ids), device=self.device)
        self.owners: list[Prompt | None] = [None] * slots
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def run(
        self,
        prompts: Iterator[Prompt],
        say: Callable[[str], None] | None = None,
        seconds: float | None = None,
    ) -> Iterator[Answer]:
        """Answers in the order in which they finish. After `seconds` no more prompts are begun and what is
        unfinished is dropped. Prompts are made by another thread, up to two for each slot in advance."""
        if self.device.type == "cuda" and self._graph is None:
            self._capture()
        coming = ahead(prompts, 2 * self.slots)
        try:
            yield from self._run(coming, say, seconds)
        finally:
            coming.close()
            self.owners = [None] * self.slots
            self.alive.fill_(False)

    def _run(
        self, prompts: Iterator[Prompt], say: Callable[[str], None] | None, seconds: float | None
    ) -> Iterator[Answer]:
        begin, tokens, rounds = time.perf_counter(), 0, 0
        more = self._fill(prompts)
        while any(owner is not None for owner in self.owners):
            for _ in range(self.check_every):
                self._step_once()
            for answer in self._harvest():
                tokens += len(answer.ids)
                yield answer
            spent, rounds = time.perf_counter() - begin, rounds + 1
            if seconds is not None and spent > seconds:
                break
            if more:
                more = self._fill(prompts)
            if say is not None and rounds % 32 == 0:
                say(f"{tokens} tokens, {tokens / spent:,.0f} tokens/s")

    def _step_once(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def _step(self) -> None:
        """One token for every slot; slots that have ended stand still."""
        hidden = self.target.decode(self.ids, self.positions, self.state)
        noise = torch.rand(self.slots, self.vocab, device=self.device)
        new = self._choose(self.target, hidden, noise, self.heat, self.min_p)
        self.ids.copy_(torch.where(self.alive, new, self.ids))
        self.positions.add_(self.alive.long())
        self.made.scatter_(1, self.positions.unsqueeze(1), self.ids.unsqueeze(1).int())
        stopped = (self.ids.unsqueeze(1) == self.stops).any(1)
        self.alive.logical_and_(~stopped & (self.positions < self.last))

    def _capture(self) -> None:
        """Record the step; what the warm-up wrote is overwritten by the first prompts."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()

    def _fill(self, prompts: Iterator[Prompt]) -> bool:
        """Begin new prompts in free slots; False when there are no more."""
        free = [i for i, owner in enumerate(self.owners) if owner is None]
        taken: list[tuple[int, Prompt]] = []
        for slot in free:
            prompt = next(prompts, None)
            if prompt is None:
                break
            assert 2 <= len(prompt.ids) < self.length, f"prompt {prompt.key} has {len(prompt.ids)} tokens"
            taken.append((slot, prompt))
        taken.sort(key=lambda pair: len(pair[1].ids))
        while taken:
            count = max(1, min(len(taken), _PREFILL_TOKENS // len(taken[-1][1].ids)))
            self._begin(taken[-count:])
            del taken[-count:]
        return len(free) == 0 or prompt is not None

    def _begin(self, group: list[tuple[int, Prompt]]) -> None:
        """All but the last token of each prompt is read at once; the first step reads the last one."""
        width = max(len(p.ids) for _, p in group) - 1
        rows = torch.tensor([[*p.ids[:-1], *[0] * (width + 1 - len(p.ids))] for _, p in group])
        lengths = torch.tensor([len(p.ids) - 1 for _, p in group], device=self.device)
        slots = torch.tensor([slot for slot, _ in group], device=self.device)
        self.target.prefill(rows.to(self.device), lengths, slots, self.state)
        self.ids[slots] = torch.tensor([p.ids[-1] for _, p in group], device=self.device)
        self.positions[slots] = lengths
        ends = [min(len(p.ids) - 1 + p.max_tokens, self.length - 1) for _, p in group]
        self.last[slots] = torch.tensor(ends, device=self.device)
        self.heat[slots] = torch.tensor([p.temperature for _, p in group], device=self.device)
        self.alive[slots] = True
        for slot, prompt in group:
            self.owners[slot] = prompt

    def _harvest(self) -> Iterator[Answer]:
        """Take what has finished out of its slots."""
        alive, ends = self.alive.tolist(), self.positions.tolist()
        done = [i for i, owner in enumerate(self.owners) if owner is not None and not alive[i]]
        if not done:
            return
        rows = self.made[torch.tensor(done, device=self.device)].cpu()
        stops = set(self.stops.tolist())
        for slot, row in zip(done, rows, strict=True):
            prompt = self.owners[slot]
            assert prompt is not None
            self.owners[slot] = None
            ids = tuple(row[len(prompt.ids) : ends[slot] + 1].tolist())
            yield Answer(prompt, ids, bool(ids) and ids[-1] in stops)

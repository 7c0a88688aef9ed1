"""The token at a position, as a function of the logits there, the request and what came before it.

At temperature 0 it is the argmax of the processed logits, else the argmax of processed logits / temperature
plus Gumbel noise that is a function of (request key, absolute position, token id); ties go to the lowest id.
So the text does not depend on what was drafted, on how tokens were grouped into windows, or on the batch.

A row of a verification window is sampled as if the drafts before it were already part of the output. State
lives in device tables (`sampler_tables`) that `commit` moves on; nothing on the way from logits to tokens
waits for the device on CUDA, and shapes depend on `plan` and the inputs' shapes alone, so that a step can be
captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.kernels import sample as kernel
from paceline.speculate import processors
from paceline.speculate.sampler_tables import SamplingRequest, SlotTables

__all__ = ["SampleRows", "Sampler", "SamplingPlan", "SamplingRequest"]

_FEWEST_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Where R rows of logits belong. All tensors int64 on the sampler's device."""

    slots: Tensor
    """[R] state slot of each row (0: a padding row, whose token means nothing)."""
    positions: Tensor
    """[R] absolute position of the token that is sampled from the row."""
    offsets: Tensor
    """[R] drafts before the row in its window: its history is the slot's output and these."""
    drafts: Tensor
    """[R, n] drafts of the row's window; those from `offsets` on are ignored."""

    @classmethod
    def single(cls, slots: Tensor, positions: Tensor) -> SampleRows:
        """One row a sequence without drafts before it: plain decoding, or the end of a prompt."""
        return cls(slots, positions, torch.zeros_like(slots), slots.new_zeros(slots.shape[0], 0))

    @classmethod
    def windows(
        cls, slots: Tensor, drafts: Tensor, row_seq: Tensor, row_start: Tensor, positions: Tensor
    ) -> SampleRows:
        """Flat rows of S windows [anchor, drafts...].

        slots, row_start [S]; drafts [S, n]; row_seq [R]: sequence of each row; positions [R]: position of
        each row's own token (the sampled one is the next). Padding rows may hold any sequence.
        """
        offsets = torch.arange(row_seq.shape[0], device=row_seq.device) - row_start[row_seq]
        offsets = offsets.clamp(0, drafts.shape[1])
        return cls(slots[row_seq], positions + 1, offsets, drafts[row_seq])


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Which steps the live requests need. Equal plans and shapes run equal kernels on equal addresses."""

    greedy: bool
    """Some request takes the best id."""
    noise: bool
    """Some request draws."""
    bias: bool
    penalties: bool
    min_tokens: bool
    bad_words: bool
    min_p: bool
    candidates: int
    """Candidates for top_k and top_p; 0: no request has them."""
    generation: int
    """Changes when tables move."""

    @property
    def bare(self) -> bool:
        """Whether every row takes the best of its raw logits."""
        return not (self.noise or self.bias or self.penalties or self.min_tokens or self.bad_words)

    @property
    def history(self) -> bool:
        """Whether a row's scores depend on which ids were drafted before it."""
        return self.penalties or self.bad_words


class Sampler:
    """Samples rows of logits for the sequences in its slots."""

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device | str) -> None:
        """`vocab_size`: ids that the tokenizer knows; logits beyond them are never sampled. Slot 0 is the
        null slot, of padding rows."""
        self.vocab = vocab_size
        self.tables = SlotTables(vocab_size, num_slots, torch.device(device))
        self._live: dict[int, SamplingRequest] = {}
        self._plan: SamplingPlan | None = None

    def add(self, slot: int, request: SamplingRequest, output_ids: Sequence[int] = ()) -> None:
        """Give a slot to a sequence; a preempted one comes back with its `output_ids`.

        Raises `RequestError` for token ids that the model has not. May wait for the device.
        """
        assert 0 < slot < self.tables.slots and slot not in self._live
        request.check(self.vocab)
        if self.tables.reserve(request):
            for other, known in self._live.items():
                self.tables.write_lists(other, known)
        self.tables.write(slot, request, output_ids)
        self._live[slot] = request
        self._plan = None

    def remove(self, slot: int) -> None:
        """Forget the sequence in a slot: finished, aborted or preempted."""
        del self._live[slot]
        self._plan = None

    @property
    def plan(self) -> SamplingPlan:
        """What the live requests need; known on the host."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> SamplingPlan:
        live = list(self._live.values())
        drawn = [r.params for r in live if not r.params.greedy]
        return SamplingPlan(
            greedy=len(drawn) < len(live),
            noise=bool(drawn),
            bias=any(r.biased for r in live),
            penalties=any(r.penalised for r in live),
            min_tokens=any(r.params.min_tokens and r.stop_ids for r in live),
            bad_words=any(r.bad_words for r in live),
            min_p=any(p.min_p > 0 for p in drawn),
            candidates=max((self._candidates(p.top_k, p.top_p) for p in drawn), default=0),
            generation=self.tables.generation,
        )

    def _candidates(self, top_k: int, top_p: float) -> int:
        """Candidates that one request's filters need; powers of two, so that plans seldom differ."""
        if 0 < top_k < self.vocab:
            return min(max(1 << (top_k - 1).bit_length(), _FEWEST_CANDIDATES), self.vocab)
        return self.vocab if top_p < 1 else 0

    def process(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """Scores [R, V] before noise: processed logits, divided by the temperature where it is above 0.

        logits [R, >= V] fp32 stay as they are.
        """
        t, plan, slots = self.tables, self.plan, rows.slots
        scores = logits[:, : self.vocab]
        if plan.bias and t.bias is not None:
            scores = scores + t.bias[slots]
        if plan.penalties and t.counts is not None and t.seen is not None:
            scores = processors.penalise(
                scores, t.seen[slots], self._counts(t.counts[slots], rows),
                t.repetition[slots], t.frequency[slots], t.presence[slots],
            )  # fmt: skip
        if plan.min_tokens:
            ids = t.stop_ids[slots]
            early = t.generated[slots] + rows.offsets < t.min_tokens[slots]
            scores = processors.mask_ids(scores, ids, early[:, None] & (ids >= 0))
        if plan.bad_words:
            scores = processors.mask_bad_words(
                scores, t.bad_prefix[slots], t.bad_last[slots], self._newest(rows)
            )
        return self._narrow(scores, slots) if plan.noise else scores

    def _narrow(self, scores: Tensor, slots: Tensor) -> Tensor:
        """Temperature, min_p, top_k and top_p; greedy rows come out as they went in."""
        t, plan = self.tables, self.plan
        temperature = t.temperature[slots]
        scores = scores / torch.where(temperature > 0, temperature, 1.0)[:, None]
        if plan.min_p:
            scores = processors.drop_unlikely(scores, t.log_min_p[slots])
        if plan.candidates:
            scores = processors.keep_likeliest(scores, t.top_k[slots], t.top_p[slots], plan.candidates)
        return scores

    def _counts(self, counts: Tensor, rows: SampleRows) -> Tensor:
        """Occurrences of each id in the rows' histories: `counts` [R, V] of the output, and drafts before."""
        drafts = rows.drafts
        valid = self._before(rows) & (drafts >= 0) & (drafts < self.vocab)
        return counts.scatter_add_(1, torch.where(valid, drafts, 0), valid.int())

    def _before(self, rows: SampleRows) -> Tensor:
        """[R, n]: whether a draft lies before the row."""
        return torch.arange(rows.drafts.shape[1], device=rows.drafts.device) < rows.offsets[:, None]

    def _newest(self, rows: SampleRows) -> Tensor:
        """[R, L]: the newest tokens of the rows' histories."""
        tail = self.tables.tail[rows.slots]
        line = torch.cat([tail, rows.drafts], 1)
        return line.gather(1, rows.offsets[:, None] + torch.arange(tail.shape[1], device=tail.device))

    def best(self, logits: Tensor) -> Tensor:
        """Best ids [R] int64 of raw logits [R, >= V]: what `sample` gives where the plan is `bare`."""
        return kernel.greedy(logits[:, : self.vocab])

    def sample(self, logits: Tensor, rows: SampleRows, allowed: Tensor | None = None) -> Tensor:
        """Tokens [R] int64 of logits [R, >= V] fp32; with `allowed` [R, V] bool, none but these ids."""
        if allowed is not None:
            logits = logits[:, : self.vocab].masked_fill(~allowed, -torch.inf)
        plan, scores = self.plan, self.process(logits, rows)
        if not plan.noise:
            return kernel.greedy(scores)
        keys = self.tables.key[rows.slots]
        if not plan.greedy:
            return kernel.gumbel_argmax(scores, keys, rows.positions)
        cold = self.tables.temperature[rows.slots] == 0
        # Masked ids get no noise computed: greedy rows cost a drawing kernel next to nothing.
        drawn = kernel.gumbel_argmax(scores.masked_fill(cold[:, None], -torch.inf), keys, rows.positions)
        return torch.where(cold, kernel.greedy(scores), drawn)

    def commit(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Append each sequence's first `counts` [S] of `tokens` [S, W] to its output.

        Padding sequences have slot 0; other slots occur once. No host wait.
        """
        self.tables.append(slots, tokens, counts)

    def draft(
        self,
        logits: Tensor,
        slots: Tensor,
        starts: Tensor,
        first: int,
        drafted: Tensor,
        method: Literal["greedy", "coupled"],
    ) -> Tensor:
        """Draft tokens [S, m] from a drafter's logits [S, m, >= V] fp32 for positions starts + 1 + first on.

        slots, starts [S]: state slot and the anchor's position; drafted [S, first]: the drafts before.
        "greedy" takes the drafter's best ids; "coupled" samples as the target will, with its processors and
        its noise.
        """
        sequences, count = logits.shape[:2]
        if method == "greedy" or self.plan.bare:
            return kernel.greedy(logits.flatten(0, 1)[:, : self.vocab]).view(sequences, count)
        if self.plan.history and count > 1:
            return self._draft_in_order(logits, slots, starts, first, drafted)
        offsets = (first + torch.arange(count, device=slots.device)).expand(sequences, count)
        rows = SampleRows(
            slots[:, None].expand(-1, count).reshape(-1),
            (starts[:, None] + 1 + offsets).reshape(-1),
            offsets.reshape(-1),
            drafted[:, None].expand(-1, count, -1).reshape(sequences * count, first),
        )
        return self.sample(logits.flatten(0, 1), rows).view(sequences, count)

    def _draft_in_order(
        self, logits: Tensor, slots: Tensor, starts: Tensor, first: int, drafted: Tensor
    ) -> Tensor:
        """One draft after the other, since processors look at the drafts before."""
        for j in range(logits.shape[1]):
            offsets = torch.full_like(slots, first + j)
            rows = SampleRows(slots, starts + 1 + offsets, offsets, drafted)
            drafted = torch.cat([drafted, self.sample(logits[:, j], rows)[:, None]], 1)
        return drafted[:, first:]

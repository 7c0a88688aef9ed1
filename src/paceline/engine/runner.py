"""Runs a planned step on the device: prompt chunks first, then draft, verify and commit.

The runner knows tensors; the scheduler knows sequences. Per decode step the host waits for the device
once, for the emitted tokens (`step.fetch_accepted`); prompts wait once more when they end.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from paceline.engine.grammar import allowed_ids
from paceline.engine.logprobs import token_logprobs
from paceline.engine.plan import PrefillChunk, Window
from paceline.engine.results import TokenLogprobs
from paceline.engine.step import (
    StepParts,
    Verified,
    chooser,
    fetch_accepted,
    marked_wait,
    verify_windows,
)
from paceline.speculate.base import DraftRequest, Drafts, ObservedRows
from paceline.speculate.sampler import SampleRows

if TYPE_CHECKING:
    from paceline.engine.batch import BatchBuilder
    from paceline.engine.buckets import BucketCache
    from paceline.engine.prefix import PrefixReuse
    from paceline.engine.sequence import Sequence
    from paceline.layers.batch import FlatBatch


@dataclass(frozen=True, slots=True)
class Emission:
    """What one sequence gained in a step."""

    sequence: Sequence
    tokens: list[int]
    """Emitted tokens: the accepted drafts and the bonus, or the first token after the prompt."""
    drafted: int
    """Drafts that the window held."""
    logprobs: list[TokenLogprobs] | None
    hidden: torch.Tensor | None = None
    """[len(tokens), H] the target's hidden of the window's rows, where prefix reuse asks for them. It lies in
    memory that the next step writes."""


class Runner:
    """Executes prompt chunks and verification windows; owns no sequence state on the host."""

    def __init__(
        self,
        parts: StepParts,
        batches: BatchBuilder,
        prefill_cell: int | None,
        draft_method: Literal["greedy", "coupled"],
        buckets: BucketCache | None = None,
        prefix: PrefixReuse | None = None,
    ):
        """`buckets` replays decode steps from captured graphs (CUDA; not for a proposer that needs the
        host)."""
        self.buckets, self.prefix = buckets, prefix
        self.parts, self.batches, self.prefill_cell = parts, batches, prefill_cell
        self.draft_method = draft_method
        self.device = batches.device

    def prefill(self, chunks: Iterable[PrefillChunk]) -> list[Emission]:
        """Run prompt chunks; sequences whose prompt ends give their first token."""
        emissions: list[Emission] = []
        for group in _rounds(chunks, self.prefill_cell):
            emissions += self._prefill_round(group)
        return emissions

    def _prefill_round(self, chunks: list[PrefillChunk]) -> list[Emission]:
        """One target pass over chunks of different sequences."""
        parts = self.parts
        batch = self.batches.build_prefill(chunks)
        ids = self._upload([i for c in chunks for i in c.sequence.prompt_ids[c.start : c.start + c.count]])
        out = parts.target.forward(ids, batch, parts.cache, parts.taps)
        last_rows = batch.row_start + batch.row_count - 1
        emissions = self._first_tokens(chunks, batch, out.hidden, last_rows)
        if parts.proposer:
            firsts = {emission.sequence: emission.tokens for emission in emissions}
            following: list[int] = []
            for chunk in chunks:
                end = chunk.start + chunk.count
                following += chunk.sequence.prompt_ids[chunk.start + 1 : end + 1]
                following += firsts.get(chunk.sequence, [])
            parts.proposer.observe(
                ObservedRows(batch, out.hidden, out.features, self._upload(following), last_rows)
            )
        if self.prefix:
            for chunk, row in zip(chunks, out.hidden[last_rows], strict=True):
                self.prefix.after_chunk(chunk.sequence, chunk.start + chunk.count, row)
        return emissions

    def _first_tokens(
        self, chunks: list[PrefillChunk], batch: FlatBatch, hidden: torch.Tensor, last_rows: torch.Tensor
    ) -> list[Emission]:
        """Sample the first token of each sequence whose prompt ends with this pass."""
        done = [i for i, chunk in enumerate(chunks) if chunk.completes]
        if not done:
            return []
        sampler, chosen = self.parts.sampler, self._upload(done)
        rows, slots = last_rows[chosen], batch.slots[chosen]
        logits = self.parts.target.logits(hidden[rows])
        states = [chunks[i].sequence.grammar for i in done]
        allowed = allowed_ids(
            states, [[]] * len(done), range(len(done)), (len(done), sampler.vocab), self.device
        )
        sampled = sampler.sample(logits, SampleRows.single(slots, batch.positions[rows] + 1), allowed)
        sampler.commit(slots, sampled[:, None], torch.ones_like(slots))
        with marked_wait(self.device):
            tokens = sampled.tolist()
        emissions = []
        for row, (index, token) in enumerate(zip(done, tokens, strict=True)):
            sequence = chunks[index].sequence
            logprobs = self._logprobs(sequence, logits[row : row + 1], [token])
            emissions.append(Emission(sequence, [token], 0, logprobs))
        return emissions

    def decode(self, windows: ListLike[Window]) -> list[Emission]:
        """Draft for every window, verify all in one pass, and return what each sequence emits."""
        if self.buckets is not None and not any(w.sequence.grammar for w in windows):
            return self._decode_in_bucket(self.buckets, windows)
        anchors = self._upload([w.sequence.anchor for w in windows])
        drafts = self._draft(windows, anchors)
        if self.parts.proposer:  # it may have found fewer drafts than there was room for
            windows = [Window(w.sequence, 1 + n) for w, n in zip(windows, drafts.counts, strict=True)]
        batch = self.batches.build_windows(windows)
        starts = [0, *accumulate(1 + count for count in drafts.counts)]
        allowed = self._allowed(windows, drafts, starts[:-1], batch.num_rows)
        verified = verify_windows(self.parts, batch, anchors, drafts.tokens, allowed)
        return self._emissions(windows, drafts.counts, starts, verified)

    def _allowed(
        self, windows: ListLike[Window], drafts: Drafts, starts: list[int], rows: int
    ) -> torch.Tensor | None:
        """Ids that each row may give, where some sequence's answer has a form; waits for the drafts then."""
        states = [w.sequence.grammar for w in windows]
        if not any(states):
            return None
        with marked_wait(self.device):
            tokens = drafts.tokens.tolist()
        drafted = [row[:count] for row, count in zip(tokens, drafts.counts, strict=True)]
        return allowed_ids(states, drafted, starts, (rows, self.parts.sampler.vocab), self.device)

    def _decode_in_bucket(self, buckets: BucketCache, windows: ListLike[Window]) -> list[Emission]:
        """The same by replaying a captured step, whose windows have room for all drafts."""
        bucket = buckets.find(windows)
        bucket.load(windows)
        verified = bucket.run()
        starts = range(0, len(windows) * bucket.size.max_rows, bucket.size.max_rows)
        return self._emissions(windows, [w.max_drafts for w in windows], starts, verified)

    def _emissions(
        self, windows: ListLike[Window], drafted: ListLike[int], starts: ListLike[int], verified: Verified
    ) -> list[Emission]:
        """Bring the accepted tokens to the host; row `starts[i]` is the first of window i."""
        emissions = []
        emitted = fetch_accepted(verified.accepted)
        for window, tokens, count, start in zip(windows, emitted, drafted, starts, strict=False):
            logprobs = None
            if window.sequence.params.logprobs is not None:  # a slice costs as much as all the rest here
                logprobs = self._logprobs(
                    window.sequence, verified.logits[start : start + len(tokens)], tokens
                )
            hidden = None
            if self.prefix and self.prefix.needs_hidden(window.sequence, len(tokens)):
                hidden = verified.hidden[start : start + len(tokens)]
            emissions.append(Emission(window.sequence, tokens, count, logprobs, hidden))
        return emissions

    def _draft(self, windows: ListLike[Window], anchors: torch.Tensor) -> Drafts:
        """Ask the proposer, for the sequences that have room for drafts; `anchors` of all windows."""
        proposer, sampler = self.parts.proposer, self.parts.sampler
        able = [i for i, w in enumerate(windows) if w.max_drafts] if proposer else []
        if not proposer or not able:
            return Drafts(self._upload([[]] * len(windows)), [0] * len(windows))
        chosen = [windows[i].sequence for i in able]
        n = proposer.num_speculative_tokens
        layout = self.batches.build_drafts(chosen, max(n, proposer.draft_span))
        limits = [windows[i].max_drafts for i in able]
        uneven = min(limits) < n
        recalled = self._recalled(chosen, n) if proposer.looks_back else None
        request = DraftRequest(
            anchors=anchors if len(able) == len(windows) else self._upload([s.anchor for s in chosen]),
            lengths=layout.lengths,
            slots=layout.slots,
            block_tables=layout.block_tables,
            limits=limits,
            rows=self._upload([limit + 1 for limit in limits]) if uneven else None,
            histories=[[*s.prompt_ids, *s.output_ids] for s in chosen] if proposer.needs_history else None,
            choose=chooser(sampler, layout.slots, layout.lengths, self.draft_method, recalled),
            max_context=layout.max_context,
            best_of=sampler.vocab if self.draft_method == "greedy" or sampler.plan.bare else None,
            recalled=recalled,
        )
        drafts = proposer.propose(request)
        return (
            drafts if len(able) == len(windows) else _spread(drafts, self._upload(able), able, len(windows))
        )

    def _recalled(self, chosen: ListLike[Sequence], width: int) -> torch.Tensor | None:
        """What the texts held before, [S, 1 + width]; None where none of them ended like this before."""
        rows = [sequence.recall(width) for sequence in chosen]
        return self._upload(rows) if any(agreed for agreed, *_ in rows) else None

    def _logprobs(
        self, sequence: Sequence, logits: torch.Tensor, tokens: list[int]
    ) -> list[TokenLogprobs] | None:
        if sequence.params.logprobs is None:
            return None
        return token_logprobs(logits, tokens, sequence.params.logprobs)

    def _upload(self, values: list) -> torch.Tensor:
        """Host integers to the device, without waiting for it."""
        tensor = torch.from_numpy(np.array(values, np.int64))  # half of what torch.tensor takes
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor


def _rounds(chunks: Iterable[PrefillChunk], cell: int | None) -> list[list[PrefillChunk]]:
    """Group chunks into passes. With a cell, a pass holds at most one cell of a sequence, cut at
    multiples of it."""
    rounds: list[list[PrefillChunk]] = []
    for chunk in chunks:
        for turn, piece in enumerate(_pieces(chunk, cell)):
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(piece)
    return rounds


def _pieces(chunk: PrefillChunk, cell: int | None) -> list[PrefillChunk]:
    if cell is None:
        return [chunk]
    end = chunk.start + chunk.count
    cuts = [chunk.start, *range((chunk.start // cell + 1) * cell, end, cell), end]
    return [replace(chunk, start=a, count=b - a) for a, b in pairwise(cuts)]


def _spread(drafts: Drafts, where: torch.Tensor, able: list[int], size: int) -> Drafts:
    """Drafts of the sequences `able` (`where` on the device) as drafts of all `size`, the others having
    none."""
    tokens = drafts.tokens.new_zeros(size, drafts.tokens.shape[1])
    tokens.index_copy_(0, where, drafts.tokens)
    counts = [0] * size
    for index, count in zip(able, drafts.counts, strict=True):
        counts[index] = count
    return Drafts(tokens, counts)

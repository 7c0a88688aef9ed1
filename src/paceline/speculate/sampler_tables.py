"""Per-slot state of the sampler, on the device: one row a state slot in every table.

Tables as wide as the vocabulary exist only from the moment when a request needs one (4 bytes × slots × V each
for bias and counts, 1 for the prompt's ids). `generation` goes up whenever a table appears or moves, so that
who captured a graph knows when it is stale. All is a function of the request and of the output so far: a
preempted sequence comes back by adding it anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.config.sampling import SamplingParams
from paceline.errors import RequestError
from paceline.speculate.processors import ANY_TOKEN, NO_TOKEN, NO_WORD


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What the sampler knows of a sequence from the start."""

    params: SamplingParams
    key: int
    """Request key, a signed 64-bit integer: H(seed, choice)."""
    prompt_ids: Sequence[int]
    eos_ids: tuple[int, ...]
    """Masked, with the stop ids, while fewer than `min_tokens` tokens exist."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences of `params.bad_words`: see `processors.bad_word_ids`."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end the sequence once they may."""
        return tuple(dict.fromkeys((*self.eos_ids, *self.params.stop_token_ids)))

    @property
    def penalised(self) -> bool:
        """Whether scores depend on which ids occurred before."""
        p = self.params
        return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    @property
    def biased(self) -> bool:
        """Whether fixed ids are raised, lowered or masked."""
        return bool(self.params.logit_bias) or self.params.allowed_token_ids is not None

    def check(self, vocab: int) -> None:
        """Raise `RequestError` for ids that the model has not, or if nothing could ever be sampled."""
        self.params.check_vocab(vocab)
        allowed = self.params.allowed_token_ids
        never = {word[0] for word in self.bad_words if len(word) == 1}
        early = set(self.stop_ids) if self.params.min_tokens else set()
        left = vocab - len(never | early) if allowed is None else len(set(allowed) - never - early)
        if left <= 0:
            raise RequestError(
                "bad_words, and min_tokens with its stop ids, leave no token to sample: allow more ids",
                param="bad_words" if allowed is None else "allowed_token_ids",
            )


class SlotTables:
    """Parameters and histories of all slots; slot 0 is the null slot of padding rows, with neutral values."""

    def __init__(self, vocab: int, slots: int, device: torch.device) -> None:
        self.vocab, self.slots, self.device = vocab, slots, device
        self.generation = 0
        self.key = self._full((slots,), 0)
        self.temperature = self._full((slots,), 0.0)
        self.log_min_p = self._full((slots,), -math.inf)
        self.top_k = self._full((slots,), vocab)
        self.top_p = self._full((slots,), 1.0, torch.float64)
        self.repetition = self._full((slots,), 1.0)
        self.frequency = self._full((slots,), 0.0)
        self.presence = self._full((slots,), 0.0)
        self.min_tokens = self._full((slots,), 0)
        self.generated = self._full((slots,), 0)
        self.bias: Tensor | None = None
        """[slots, V] fp32: logit_bias, and -inf for ids that are not allowed."""
        self.counts: Tensor | None = None
        """[slots, V] int32: occurrences in the output."""
        self.seen: Tensor | None = None
        """[slots, V] bool: ids in the prompt."""
        self.stop_ids = self._full((slots, 1), -1)
        """[slots, M]; -1 is none."""
        self.bad_prefix = self._full((slots, 1, 1), NO_WORD)
        """[slots, B, L] tokens of each bad word before its last, right-aligned."""
        self.bad_last = self._full((slots, 1), 0)
        """[slots, B]."""
        self.tail = self._full((slots, 1), NO_TOKEN)
        """[slots, L] newest output tokens, right-aligned."""

    def _full(self, shape: tuple[int, ...], value: float, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or (torch.int64 if isinstance(value, int) else torch.float32)
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def reserve(self, request: SamplingRequest) -> bool:
        """Make room for `request`. True if the lists of stop ids and bad words grew: they are empty then, and
        `write_lists` is due for every live slot."""
        if request.biased and self.bias is None:
            self.generation += 1
            self.bias = self._full((self.slots, self.vocab), 0.0)
        if request.penalised and self.counts is None:
            self.generation += 1
            self.counts = self._full((self.slots, self.vocab), 0, torch.int32)
            self.seen = self._full((self.slots, self.vocab), 0, torch.bool)
        stops = len(request.stop_ids) if request.params.min_tokens else 0
        words, length = len(request.bad_words), max((len(w) - 1 for w in request.bad_words), default=0)
        now = (self.stop_ids.shape[1], self.bad_last.shape[1], self.tail.shape[1])
        wanted = tuple(map(_capacity, (stops, words, length), now))
        if wanted == now:
            return False
        self._grow(*wanted)
        return True

    def _grow(self, stops: int, words: int, length: int) -> None:
        self.generation += 1
        tail = self._full((self.slots, length), NO_TOKEN)
        # Older tokens than the tail held are not needed: no word of a live slot looks further back.
        tail[:, length - self.tail.shape[1] :] = self.tail
        self.tail = tail
        self.stop_ids = self._full((self.slots, stops), -1)
        self.bad_prefix = self._full((self.slots, words, length), NO_WORD)
        self.bad_last = self._full((self.slots, words), 0)

    def write_lists(self, slot: int, request: SamplingRequest) -> None:
        """Write the tables of stop ids and bad words of one slot."""
        stops = list(request.stop_ids) if request.params.min_tokens else []
        self.stop_ids[slot] = self._padded(stops, self.stop_ids.shape[1], -1)
        words, length = self.bad_prefix.shape[1:]
        prefixes = [[ANY_TOKEN] * (length + 1 - len(w)) + list(w[:-1]) for w in request.bad_words]
        prefixes += [[NO_WORD] * length] * (words - len(prefixes))
        self.bad_prefix[slot] = torch.tensor(prefixes, dtype=torch.int64).to(self.device)
        self.bad_last[slot] = self._padded([w[-1] for w in request.bad_words], words, 0)

    def _padded(self, values: Sequence[int], width: int, fill: int) -> Tensor:
        row = [*values, *[fill] * (width - len(values))]
        return torch.tensor(row, dtype=torch.int64).to(self.device)

    def write(self, slot: int, request: SamplingRequest, output_ids: Sequence[int]) -> None:
        """Fill one slot; `output_ids` is what the sequence has generated so far."""
        p = request.params
        self.key[slot] = request.key
        self.temperature[slot] = 0.0 if p.greedy else p.temperature
        # A greedy row takes the best id, which every filter keeps: it goes without.
        narrowed = not p.greedy
        self.log_min_p[slot] = math.log(p.min_p) if narrowed and p.min_p > 0 else -math.inf
        self.top_k[slot] = min(p.top_k, self.vocab) if narrowed and p.top_k > 0 else self.vocab
        self.top_p[slot] = p.top_p if narrowed else 1.0
        self.repetition[slot] = p.repetition_penalty
        self.frequency[slot] = p.frequency_penalty
        self.presence[slot] = p.presence_penalty
        self.min_tokens[slot] = p.min_tokens
        self.generated[slot] = len(output_ids)
        self.write_lists(slot, request)
        length = self.tail.shape[1]
        newest = list(output_ids[-length:])
        self.tail[slot] = self._padded([NO_TOKEN] * (length - len(newest)) + newest, length, NO_TOKEN)
        self._write_bias(slot, request)
        self._write_counts(slot, request, output_ids)

    def _write_bias(self, slot: int, request: SamplingRequest) -> None:
        if self.bias is None:
            return
        allowed, bias = request.params.allowed_token_ids, request.params.logit_bias or {}
        row = torch.full((self.vocab,), 0.0 if allowed is None else -math.inf)
        row[list(allowed or ())] = 0.0
        row[list(bias)] += torch.tensor(list(bias.values()), dtype=torch.float32)
        self.bias[slot] = row.to(self.device)

    def _write_counts(self, slot: int, request: SamplingRequest, output_ids: Sequence[int]) -> None:
        if self.counts is None or self.seen is None:
            return
        self.counts[slot] = self._histogram(output_ids if request.penalised else ())
        self.seen[slot] = self._histogram(request.prompt_ids if request.penalised else ()) > 0

    def _histogram(self, ids: Sequence[int]) -> Tensor:
        known = torch.tensor([i for i in ids if i < self.vocab], dtype=torch.int64)
        return torch.bincount(known, minlength=self.vocab).to(self.device, torch.int32)

    def append(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Add each sequence's first `counts` [S] of `tokens` [S, W] to its history; pure device work."""
        valid = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
        self.generated.index_add_(0, slots, counts)
        length = self.tail.shape[1]
        line = torch.cat([self.tail[slots], tokens], 1)
        newest = counts[:, None] + torch.arange(length, device=tokens.device)
        self.tail.index_copy_(0, slots, line.gather(1, newest))
        if self.counts is not None:
            valid = valid & (tokens >= 0) & (tokens < self.vocab)
            where = slots[:, None] * self.vocab + torch.where(valid, tokens, 0)
            self.counts.view(-1).scatter_add_(0, where.reshape(-1), valid.reshape(-1).int())


def _capacity(wanted: int, now: int) -> int:
    """Table width for `wanted` entries: doubled until it fits, so that growth is rare."""
    while now < wanted:
        now *= 2
    return now

"""Batches of packed samples: every batch is a function of its step, so that a resumed run needs no more.

Whole samples are packed into rows of `length` tokens, once: over a permutation drawn from the seed, each
sample goes into the fullest row that has the room (best fit). Epoch e deals the rows out in an order drawn
from (seed, e); with W ranks, step s of an epoch takes the next `rows` × W of them. The last step of an epoch
fills up from its beginning, so that batches always have the same shape and no rank is left without a loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.train.data.shards import Sample

PADDING_DOCUMENT = 0
_PACKING, _ORDER = 0, 1  # streams of random numbers under one seed


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """B rows of T tokens, each row several samples one behind the other and padding behind them."""

    ids: torch.Tensor
    """[B, T] int64; padding has the pad id."""
    loss_mask: torch.Tensor
    """[B, T] bool: `ids` holds a token of an answer here (the one that ends it included). It marks the token
    that is predicted, not the place it is predicted from."""
    documents: torch.Tensor
    """[B, T] int64: number of the sample within its row, from 1; 0 is padding."""

    def to(self, device: torch.device | str) -> TokenBatch:
        """The batch on a device; copies to a GPU go through pinned memory and do not wait."""
        values = [self.ids, self.loss_mask, self.documents]
        if torch.device(device).type == "cuda":
            values = [value if value.is_cuda else value.pin_memory() for value in values]
        return TokenBatch(*(value.to(device, non_blocking=True) for value in values))


class SampleBatches:
    """Samples, packed and dealt out.

    A sample longer than a row loses its end; one whose prompt fills a row alone has nothing to learn and is
    left out, with a warning. Keeps 4 bytes a token.
    """

    def __init__(self, samples: Iterable[Sample], *, rows: int, length: int, pad_id: int, seed: int) -> None:
        """rows: of one rank's batch; length: tokens of a row. Raises ConfigError if no sample is left."""
        assert rows > 0 and length > 1
        self.rows, self.length, self.pad_id, self.seed = rows, length, pad_id, seed
        self.num_truncated = self.num_left_out = 0
        self._tokens, self._prompts, lengths = self._collect(samples)
        if not len(lengths):
            raise ConfigError(
                f"no sample has a token to learn within {length} tokens: give data, or a larger length",
                key="length",
            )
        if self.num_left_out:
            warnings.warn(
                f"{self.num_left_out} samples have no answer within {length} tokens and are left out",
                stacklevel=2,
            )
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        order = _generator(seed, _PACKING).permutation(len(lengths))
        self._packed = pack(lengths, order, length)
        self._order: tuple[int, np.ndarray] | None = None  # of the epoch that was asked for last

    @property
    def num_samples(self) -> int:
        """Samples that are dealt out in an epoch."""
        return len(self._prompts)

    @property
    def num_rows(self) -> int:
        """Packed rows of an epoch."""
        return len(self._packed)

    @property
    def num_tokens(self) -> int:
        """Tokens of an epoch, padding aside."""
        return len(self._tokens)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of an epoch that count in the loss."""
        return self.num_tokens - int(self._prompts.sum())

    def answers_with(self, token: int) -> int:
        """How often `token` stands in the answers of an epoch."""
        at = np.flatnonzero(self._tokens == token)
        sample = np.searchsorted(self._starts, at, side="right") - 1
        return int((at - self._starts[sample] >= self._prompts[sample]).sum())

    def steps_per_epoch(self, world: int = 1) -> int:
        """Steps in which `world` ranks see every sample."""
        return -(-self.num_rows // (self.rows * world))

    def batch(self, step: int, rank: int = 0, world: int = 1) -> TokenBatch:
        """Rank `rank`'s part of global step `step` (counted over epochs), on the CPU."""
        assert step >= 0 and 0 <= rank < world
        epoch, within = divmod(step, self.steps_per_epoch(world))
        first = (within * world + rank) * self.rows
        order = self._epoch_order(epoch)
        ids = np.full((self.rows, self.length), self.pad_id, np.int64)
        mask = np.zeros((self.rows, self.length), np.bool_)
        documents = np.full((self.rows, self.length), PADDING_DOCUMENT, np.int64)
        for row in range(self.rows):
            packed = self._packed[order[(first + row) % len(order)]]
            self._fill(packed, ids[row], mask[row], documents[row])
        return TokenBatch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(documents))

    def _fill(self, packed: list[int], ids: np.ndarray, mask: np.ndarray, documents: np.ndarray) -> None:
        """Write the samples of one packed row into rows of arrays."""
        at = 0
        for number, sample in enumerate(packed, start=PADDING_DOCUMENT + 1):
            start, end = self._starts[sample], self._starts[sample + 1]
            behind = at + int(end - start)
            ids[at:behind] = self._tokens[start:end]
            mask[at + self._prompts[sample] : behind] = True
            documents[at:behind] = number
            at = behind

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, _generator(self.seed, _ORDER, epoch).permutation(self.num_rows))
        return self._order[1]

    def _collect(self, samples: Iterable[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All tokens in one array, tokens of each prompt, and length of each sample."""
        tokens: list[np.ndarray] = []
        prompts, lengths = [], []
        for sample in samples:
            prompt, whole = len(sample.prompt_ids), len(sample.prompt_ids) + len(sample.answer_ids)
            kept = min(whole, self.length)
            if prompt >= kept:
                self.num_left_out += 1
                continue
            self.num_truncated += kept < whole
            tokens.append(np.array([*sample.prompt_ids, *sample.answer_ids][:kept], np.int32))
            prompts.append(prompt)
            lengths.append(kept)
        flat = np.concatenate(tokens) if tokens else np.zeros(0, np.int32)
        return flat, np.array(prompts, np.int64), np.array(lengths, np.int64)


def pack(lengths: np.ndarray, order: np.ndarray, size: int) -> list[list[int]]:
    """Rows of at most `size` tokens: lists of samples, in the order in which rows were begun.

    lengths [N]: tokens of each sample, at most `size`; order [N]: which sample is placed when. Each goes into
    the row with the least room that suffices (equally full rows are alike). Open rows are found by a bit for
    each amount of room, in one shift of a `size`-bit integer: a million samples take seconds.
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(size + 1)]
    open_rooms = 0  # bit r: some row has room for exactly r more tokens
    all_lengths: list[int] = lengths.tolist()
    for sample in order.tolist():
        need = all_lengths[sample]
        assert 0 < need <= size
        fitting = open_rooms >> need
        if fitting:
            room = need + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                open_rooms ^= 1 << room
        else:
            room, row = size, len(rows)
            rows.append([])
        rows[row].append(sample)
        if room > need:
            by_room[room - need].append(row)
            open_rooms |= 1 << (room - need)
    return rows


def _generator(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, *stream])

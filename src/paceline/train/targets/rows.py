"""Passages as token ids, packed into rows; every batch is a function of its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from paceline.train.data.batches import PADDING_DOCUMENT, pack
from paceline.train.targets.corpus import Passage

_AT_ONCE = 4096
_PACKING, _ORDER = 0, 1  # streams of random numbers under one seed


@dataclass(frozen=True, slots=True)
class RowBatch:
    """B rows of T tokens, each row several passages one behind the other and padding behind them."""

    ids: Tensor
    """[B, T] int64."""
    weights: Tensor
    """[B, T] fp32: what the prediction of the token that stands here counts; 0 for padding, negative where
    the token is to become unlikely."""
    documents: Tensor
    """[B, T] int64: number of the passage within its row, from 1; 0 is padding."""

    def to(self, device: torch.device) -> RowBatch:
        """The batch on a device. From pinned memory, because only then a copy to a GPU does not wait."""
        parts: tuple[Tensor, ...] = (self.ids, self.weights, self.documents)
        if device.type == "cuda":
            parts = tuple(part.pin_memory() for part in parts)
        return RowBatch(*(part.to(device, non_blocking=True) for part in parts))


class Tokens:
    """Ids of all passages of one split, end to end, 5 bytes a token; stretches of at most `length` tokens.

    A longer text goes on in a further stretch; a dialogue that is too long loses its end.
    """

    def __init__(self, passages: Iterable[Passage], tokenizer: Tokenizer, length: int) -> None:
        self.length = length
        ids: list[np.ndarray] = []
        learn: list[np.ndarray] = []
        sizes: list[int] = []
        self.kinds: dict[str, list[int]] = {}
        """Numbers of the stretches of each kind, as often as an epoch has them."""
        self.characters: dict[str, int] = {}
        for passage, mine, flags in _encoded(passages, tokenizer):
            whole = len(passage.pieces) == 1  # nothing but text
            for at in range(0, len(mine) if whole else 1, length):
                part = slice(at, at + length)
                if not flags[part].any():
                    continue
                self.kinds.setdefault(passage.kind, []).extend([len(sizes)] * passage.repeat)
                ids.append(mine[part])
                learn.append(flags[part])
                sizes.append(len(ids[-1]))
            self.characters[passage.kind] = self.characters.get(passage.kind, 0) + len(passage.text)
        self.ids = np.concatenate(ids) if ids else np.zeros(0, np.int32)
        self.learn = np.concatenate(learn) if learn else np.zeros(0, np.bool_)
        self.sizes = np.array(sizes, np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self.avoided_from = len(sizes)
        """The first stretch whose marked tokens are to be unlearnt; nothing else counts there."""

    @classmethod
    def of(
        cls,
        length: int,
        ids: np.ndarray,
        learn: np.ndarray,
        sizes: np.ndarray,
        kinds: dict[str, list[int]],
        characters: dict[str, int],
    ) -> Tokens:
        """Tokens that were encoded before; see the attributes."""
        made = cls.__new__(cls)
        made.length, made.ids, made.learn, made.sizes = length, ids, learn, sizes
        made.kinds, made.characters = kinds, characters
        made.starts = np.concatenate([[0], np.cumsum(sizes)])
        made.avoided_from = len(sizes)
        return made

    @property
    def avoids(self) -> bool:
        """Whether any stretch is one of tokens to be unlearnt."""
        return self.avoided_from < len(self.sizes)

    def and_avoid(self, stretches: Sequence[tuple[np.ndarray, np.ndarray]], kind: str, repeat: int) -> Tokens:
        """These tokens and stretches (ids, which of them are to be unlearnt) behind them, `repeat` times an
        epoch; see `loops`."""
        assert kind not in self.kinds
        ids, marked = (np.concatenate(part) for part in zip(*stretches, strict=True))
        sizes = np.array([len(mine) for mine, _ in stretches], np.int64)
        numbers = list(range(len(self.sizes), len(self.sizes) + len(sizes))) * repeat
        made = Tokens.of(
            self.length,
            np.concatenate([self.ids, ids]),
            np.concatenate([self.learn, marked]),
            np.concatenate([self.sizes, sizes]),
            {**self.kinds, kind: numbers},
            self.characters,
        )
        made.avoided_from = len(self.sizes)
        return made

    def stretch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids, and whether they are learnt."""
        part = slice(self.starts[number], self.starts[number + 1])
        return self.ids[part], self.learn[part]

    def count(self) -> dict[str, int]:
        """Tokens of an epoch, by kind."""
        return {kind: int(self.sizes[np.array(mine)].sum()) for kind, mine in self.kinds.items()}


class PackedRows:
    """Rows of `tokens`, dealt out in an order that each epoch draws anew."""

    def __init__(
        self, tokens: Tokens, rows: int, prompt_weight: float, seed: int, kind: str | None = None
    ) -> None:
        """rows: of a batch; kind: only stretches of that kind."""
        self.tokens, self.rows, self.prompt_weight, self.seed = tokens, rows, prompt_weight, seed
        kinds = tokens.kinds.values() if kind is None else [tokens.kinds[kind]]
        members = np.array([number for mine in kinds for number in mine], np.int64)
        order = _generator(seed, _PACKING).permutation(len(members))
        packed = pack(tokens.sizes[members], order, tokens.length)
        self.packed = [members[np.array(row)] for row in packed]
        self._order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """Batches of an epoch; the last one fills up from its beginning."""
        return -(-len(self.packed) // self.rows)

    def batch(self, index: int) -> RowBatch:
        """Batch number `index`, counted over epochs, on the CPU."""
        epoch, within = divmod(index, len(self))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, _generator(self.seed, _ORDER, epoch).permutation(len(self.packed))
        order = self._order[1]
        numbers = [order[(within * self.rows + row) % len(order)] for row in range(self.rows)]
        return self.row_batch([self.packed[number] for number in numbers])

    def row_batch(self, rows: list[np.ndarray]) -> RowBatch:
        """Rows of these stretches."""
        shape = (len(rows), self.tokens.length)
        ids, documents = np.zeros(shape, np.int64), np.full(shape, PADDING_DOCUMENT, np.int64)
        weights = np.zeros(shape, np.float32)
        for row, stretches in enumerate(rows):
            at = 0
            for number, stretch in enumerate(stretches, start=PADDING_DOCUMENT + 1):
                mine, learn = self.tokens.stretch(int(stretch))
                behind = at + len(mine)
                ids[row, at:behind], documents[row, at:behind] = mine, number
                avoided = stretch >= self.tokens.avoided_from
                counts = -1.0 * learn if avoided else np.where(learn, 1.0, self.prompt_weight)
                weights[row, at:behind] = counts
                weights[row, at] = 0.0  # nothing stands before it that could predict it
                at = behind
        return RowBatch(torch.from_numpy(ids), torch.from_numpy(weights), torch.from_numpy(documents))


def _encoded(
    passages: Iterable[Passage], tokenizer: Tokenizer
) -> Iterator[tuple[Passage, np.ndarray, np.ndarray]]:
    """(passage, ids, whether each is learnt), encoded many at a time."""
    stream = iter(passages)
    while group := list(islice(stream, _AT_ONCE)):
        texts = [piece.text for passage in group for piece in passage.pieces]
        encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for passage in group:
            parts = [next(encoded).ids for _ in passage.pieces]
            learn = [np.full(len(ids), piece.learn) for ids, piece in zip(parts, passage.pieces, strict=True)]
            yield passage, np.array([i for ids in parts for i in ids], np.int32), np.concatenate(learn)


def _generator(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, *stream])

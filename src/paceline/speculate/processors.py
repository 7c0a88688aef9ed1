"""What sampling parameters do to logits: pure functions of rows, in the order in which they are applied.

    logit_bias and allowed_token_ids (one added row); repetition, frequency and presence penalties;
    min_tokens; bad_words; then, for temperature > 0, division by it, min_p, top_k, top_p.

`scores` is [R, V] fp32 throughout, V the ids that may be sampled, -inf a masked id. A row's result depends on
its own values alone, bit for bit, and a row with neutral parameters comes out as it went in; so it does not
matter which rows share a call. Elementwise arithmetic gives that by itself; softmax reduces each row in one
fixed order (a test holds it to that); and masses are added as integers, whose sums have no rounding.

Nothing here waits for the device, except where it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import RequestError

ANY_TOKEN = -1
"""In a bad word's prefix: matches whatever stands there, also nothing."""
NO_TOKEN = -2
"""In a history: there is no token (the output is shorter)."""
NO_WORD = -3
"""In a bad word's prefix: matches nothing; fills tables."""

MAX_BAD_WORD_TOKENS = 32
"""Tokens of a bad word at most: tables of all slots are as wide as the longest."""

_MASS_ONE = float(2**48)
_LOW_32 = 0xFFFFFFFF
# On the CPU, top_p without top_k looks among this many candidates before it sorts the whole row.
_FIRST_CANDIDATES = 1024


def penalise(
    scores: Tensor, seen: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """Repetition, frequency and presence penalties as vLLM defines them.

    seen [R, V] bool: ids in the prompt; counts [R, V] int: occurrences in the output; penalties [R] fp32.
    Repetition looks at prompt and output: a positive score is divided by it, another one multiplied.
    Frequency is subtracted for each occurrence in the output, presence once if there is any.
    """
    used = counts > 0
    repetition = repetition[:, None]
    scaled = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(seen | used, scaled, scores)
    scores = scores - frequency[:, None] * counts
    return scores - presence[:, None] * used


def mask_ids(scores: Tensor, ids: Tensor, active: Tensor) -> Tensor:
    """Set `ids` [R, M] to -inf where `active` [R, M]; an id may occur several times."""
    ids = torch.where(active, ids, 0)
    values = torch.where(active, -torch.inf, torch.inf).to(scores.dtype)
    # The minimum, unlike an assignment, has one result however often an id occurs.
    return scores.scatter_reduce(1, ids, values, "amin")


def mask_bad_words(scores: Tensor, prefixes: Tensor, last: Tensor, history: Tensor) -> Tensor:
    """Mask the last token of each bad word whose other tokens are the newest ones of the output.

    prefixes [R, B, L]: tokens before the last, right-aligned behind `ANY_TOKEN`; last [R, B]; history [R, L]:
    the newest output tokens, right-aligned behind `NO_TOKEN`. A row that would have nothing left stays as
    it is.
    """
    matched = ((prefixes == ANY_TOKEN) | (prefixes == history[:, None])).all(-1)
    masked = mask_ids(scores, last, matched)
    some_left = (masked > -torch.inf).any(-1, keepdim=True)
    return torch.where(some_left, masked, scores)


def drop_unlikely(scores: Tensor, log_min_p: Tensor) -> Tensor:
    """min_p: mask ids whose score is below the row's maximum + `log_min_p` [R] (-inf: none).

    After temperature, that is a probability below min_p × the likeliest id's.
    """
    floor = scores.amax(-1, keepdim=True) + log_min_p[:, None]
    return scores.masked_fill(scores < floor, -torch.inf)


class Candidates(NamedTuple):
    """The likeliest ids of each row, best first; among equal scores the lowest id comes first."""

    ids: Tensor
    """[R, K] int64."""
    scores: Tensor
    """[R, K]."""


def likeliest(scores: Tensor, count: int) -> Candidates:
    """The `count` best ids of every row, by score, then by lowest id; masked ids come last, in any order."""
    wide = 4 * count
    if scores.device.type == "cpu" and 0 < wide < scores.shape[-1]:
        best, ids = scores.topk(wide, dim=-1, sorted=True)
        # `topk` is far faster on floats than on keys, but picks any of those that tie with its last one.
        settled = (best[:, count - 1] > best[:, -1]) | (best[:, -1] == -torch.inf)
        if bool(settled.all()):
            return _in_order(best, ids, count)
    return _in_order(scores, torch.arange(scores.shape[-1], device=scores.device), count)


def _in_order(scores: Tensor, ids: Tensor, count: int) -> Candidates:
    """The `count` best of `scores` [R, K], which belong to `ids` [R, K] or [K]."""
    # One integer carries both: the score's bits, made monotonic, above the id's complement.
    # Adding 0.0 turns -0.0 into 0.0, which equals it but has other bits.
    bits = (scores + 0.0).view(torch.int32)
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (bits.long() << 32) + (_LOW_32 - ids)
    if count < scores.shape[-1]:
        keys = keys.topk(count, dim=-1, sorted=True).values
    else:
        keys = keys.sort(dim=-1, descending=True).values
    bits = (keys >> 32).int()
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return Candidates(_LOW_32 - (keys & _LOW_32), bits.view(torch.float32))


def keep_likeliest(scores: Tensor, top_k: Tensor, top_p: Tensor, count: int) -> Tensor:
    """top_k, then top_p, in the order of `likeliest`: ties are broken towards the lowest id.

    top_k [R] int64 keeps exactly the first k ids (V: all). top_p [R] fp64 keeps the shortest prefix of those
    whose mass reaches p of their mass together (1: all); masses are fp32 probabilities in units of 2^-48.
    `count`, known on the host, is at least every top_k below V, and V if a row has top_p without top_k. Waits
    for nothing on CUDA.
    """
    vocab = scores.shape[-1]
    probabilities = torch.softmax(scores, -1)
    if scores.device.type == "cpu" and count == vocab > _FIRST_CANDIDATES:
        largest = int(top_k.masked_fill(top_k >= vocab, 0).max()) if top_k.numel() else 0
        few = max(_FIRST_CANDIDATES, largest)
        kept, reached = _keep_prefix(scores, probabilities, top_k, top_p, min(few, vocab))
        if bool(reached.all()):
            return kept
    return _keep_prefix(scores, probabilities, top_k, top_p, count)[0]


def _keep_prefix(
    scores: Tensor, probabilities: Tensor, top_k: Tensor, top_p: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """`keep_likeliest` among `count` candidates, and whether they sufficed [R]."""
    vocab = scores.shape[-1]
    found = likeliest(scores, count)
    inside = torch.arange(count, device=scores.device) < top_k[:, None]
    mass = (probabilities.gather(1, found.ids).double() * _MASS_ONE).round().long() * inside
    total_mass = mass.cumsum(-1)
    limited = top_k < vocab
    whole = torch.where(limited, total_mass[:, -1].double(), _MASS_ONE)
    wanted = (top_p * whole)[:, None]
    everything = top_p >= 1
    keep = inside & (everything[:, None] | (total_mass - mass < wanted))
    kept = torch.full_like(scores, -torch.inf)
    kept.scatter_(1, found.ids, found.scores.masked_fill(~keep, -torch.inf))
    untouched = everything & ~limited
    reached = limited | everything | (total_mass[:, -1] >= wanted[:, 0])
    return torch.where(untouched[:, None], scores, kept), reached


def log_probabilities(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Candidates]:
    """Log-softmax of raw logits [R, V]: that of `tokens` [R], and the k best ids of each row with theirs."""
    values = torch.log_softmax(logits.float(), -1)
    chosen = values.gather(1, tokens[:, None])[:, 0]
    return chosen, likeliest(values, k)


def bad_word_ids(words: Iterable[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Token sequences of bad words: each as it stands at the start of a text and, where that makes other
    tokens of the same number, after a space (vLLM's rule). `encode` adds no special tokens.

    Raises `RequestError` for a word without tokens, or with too many.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = tuple(encode(word.lstrip()))
        if not bare:
            raise RequestError(f"bad_words: {word!r} has no tokens", param="bad_words")
        if len(bare) > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"bad_words: {word!r} has {len(bare)} tokens; a word has at most {MAX_BAD_WORD_TOKENS}",
                param="bad_words",
            )
        found[bare] = None
        spaced = tuple(encode(" " + word.lstrip()))
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found[spaced] = None
    return tuple(found)

"""Readable torch form of keyed sampling: the oracle, and what runs on CUDA.

The noise of token id ``v`` at absolute position ``t`` of a request is a pure function of (request key, t, v):

    rowkey = mix64(key + 0x9E3779B97F4A7C15 * (t + 1))
    x      = mix64(rowkey + 0xD1B54A32D192ED03 * (v + 1)) >> 32
    u      = (x + 1/2) / 2^32               in (0, 1), never 0 or 1; exact in float64
    noise  = float32(-log(-log(u)))         the logarithms in float64

with all integers modulo 2^64 and ``mix64`` the finaliser of splitmix64 (Steele et al., OOPSLA 2014).
The noise lies between -3.13 and 22.88. Torch has no uint64 arithmetic, so int64 stands in: sums and products
wrap the same way, and a right shift is masked to be a logical one.

Two libraries' float64 logarithms may differ in the last bit, which after rounding to float32 shows in about
one value of 10^8. It does not matter to identity, because a process uses one path for everything: C++ on the
CPU (this one where it is off), this one on CUDA.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kernels.rows import rowwise

_MASK = (1 << 64) - 1
_POSITION_STEP = 0x9E3779B97F4A7C15
_TOKEN_STEP = 0xD1B54A32D192ED03
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Keep the keys of choices and the keys of prompts apart, whatever the numbers.
_CHOICE_STEP = 0xA0761D6478BD642F
_PROMPT_STEP = 0xE7037ED1A0B428DB


def greedy(scores: Tensor) -> Tensor:
    """argmax of every row of ``scores`` [R, V] fp32; the lowest id on ties, id 0 where all are -inf."""
    return scores.argmax(dim=-1)


def gumbel_argmax(scores: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """argmax of scores + noise for every row. See ``sample.gumbel_argmax``."""
    return (scores + gumbel_noise(keys, positions, scores.shape[-1])).argmax(dim=-1)


def gumbel_noise(keys: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Noise [R, vocab] fp32 of the rows' request ``keys`` [R] and absolute ``positions`` [R], int64."""
    row_keys = _mix64(keys + (positions + 1) * _signed(_POSITION_STEP))
    steps = torch.arange(1, vocab + 1, device=keys.device) * _signed(_TOKEN_STEP)
    # By rows on the CPU: there the logarithm's last bit depends on an element's place in the tensor.
    return rowwise(lambda keys: _noise(keys[:, None] + steps), row_keys)


def _noise(x: Tensor) -> Tensor:
    u = _shift_right(_mix64(x), 32).double().add_(0.5).mul_(2.0**-32)
    return u.log_().neg_().log_().neg_().float()


def request_key(seed: int, choice: int) -> int:
    """Key of one choice of a request, as a signed 64-bit integer; any integer is a seed (modulo 2^64)."""
    assert choice >= 0, choice
    return _signed(mix64(mix64(seed) + _CHOICE_STEP * (choice + 1)))


def prompt_key(seed: int, prompt_id: str) -> int:
    """Seed of one prompt of a list, as a signed 64-bit integer, from the list's seed and the prompt's id.

    Hashes the id's UTF-8 bytes, so a prompt's text does not depend on its place in the list.
    """
    data = prompt_id.encode()
    state = mix64(seed ^ _PROMPT_STEP)
    for start in range(0, len(data), 8):
        state = mix64((state ^ int.from_bytes(data[start : start + 8], "little")) + _PROMPT_STEP)
    return _signed(mix64(state + len(data)))


def mix64(x: int) -> int:
    """Finaliser of splitmix64, a bijection of the 64-bit integers; ``x`` is taken modulo 2^64."""
    x &= _MASK
    x = (x ^ (x >> 30)) * _MIX_1 & _MASK
    x = (x ^ (x >> 27)) * _MIX_2 & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """The int64 with the bits of ``x``, 0 <= x < 2^64."""
    return x - (1 << 64) if x >> 63 else x


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix64(x: Tensor) -> Tensor:
    x = _shift_right(x, 30).bitwise_xor_(x).mul_(_signed(_MIX_1))
    x = _shift_right(x, 27).bitwise_xor_(x).mul_(_signed(_MIX_2))
    return _shift_right(x, 31).bitwise_xor_(x)

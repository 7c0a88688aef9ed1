"""The native CPU code of keyed sampling, called through ctypes."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from paceline.kernels import build

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


def native() -> Native | None:
    """The native operators, or None where the torch reference must run."""
    lib = build.library("sample")
    return None if lib is None else Native(lib)


class Native:
    """``greedy``, ``gumbel_argmax`` and ``gumbel_noise`` as the reference defines them, on the CPU."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._greedy, self._argmax, self._noise = (
            lib.sample_greedy,
            lib.sample_gumbel_argmax,
            lib.sample_gumbel_noise,
        )
        self._greedy.argtypes = [_POINTER, _INT, _INT, _INT, _POINTER]
        self._argmax.argtypes = [_POINTER, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER]
        self._noise.argtypes = [_POINTER, _POINTER, _INT, _INT, _POINTER]

    def greedy(self, scores: Tensor) -> Tensor:
        """As `reference.greedy`."""
        rows, vocab = _check_scores(scores)
        out = torch.empty(rows, dtype=torch.int64)
        self._greedy(scores.data_ptr(), scores.stride(0), rows, vocab, out.data_ptr())
        return out

    def gumbel_argmax(self, scores: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """As `reference.gumbel_argmax`."""
        rows, vocab = _check_scores(scores)
        _check_index(rows, keys, positions)
        out = torch.empty(rows, dtype=torch.int64)
        index = (keys.data_ptr(), positions.data_ptr())
        self._argmax(scores.data_ptr(), scores.stride(0), rows, vocab, *index, out.data_ptr())
        return out

    def gumbel_noise(self, keys: Tensor, positions: Tensor, vocab: int) -> Tensor:
        """As `reference.gumbel_noise`."""
        rows = keys.shape[0]
        _check_index(rows, keys, positions)
        out = torch.empty(rows, vocab, dtype=torch.float32)
        self._noise(keys.data_ptr(), positions.data_ptr(), rows, vocab, out.data_ptr())
        return out


def _check_scores(scores: Tensor) -> tuple[int, int]:
    rows, vocab = scores.shape
    assert vocab > 0, "rows without ids have no maximum"
    assert scores.dtype == torch.float32 and (scores.stride(1) == 1 or vocab == 1), "scores are fp32 rows"
    return rows, vocab


def _check_index(rows: int, *index: Tensor) -> None:
    for t in index:
        assert t.dtype == torch.int64 and t.is_contiguous() and t.shape == (rows,), "one int64 a row"

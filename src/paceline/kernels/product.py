"""A linear layer as native code sees it, so that other native code runs it without a way through Python."""

from __future__ import annotations

import ctypes
from typing import NamedTuple


class NativeProduct(NamedTuple):
    """x Wᵀ in the weight's dtype: `run(layer, kind, x, row stride, rows, out)`.

    It points into the layer that it was taken from, which has to be kept.
    """

    run: int
    """Address of the function."""
    layer: int
    """Address of the layer's description."""
    kind: int
    out_features: int


class CProduct(ctypes.Structure):
    """The same for C++ (dflash/cpu.cpp)."""

    _fields_ = (
        ("run", ctypes.c_void_p),
        ("layer", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("outs", ctypes.c_int64),
    )

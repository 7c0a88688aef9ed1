"""A linear layer as native code sees it, so that other native code runs it without a way through Python."""

from __future__ import annotations

import ctypes
from typing import NamedTuple


class NativeProduct(NamedTuple):
    """x Wᵀ of x in the weight's dtype: `run(layer, kind, x, row stride, rows, out)`.

    It points into the layer that it was taken from, which has to be kept.
    """

    run: int
    """Address of the function."""
    layer: int
    """Address of the layer's description."""
    kind: int
    """For results in the weight's dtype."""
    out_features: int
    fp32_kind: int
    """For float32 results."""

    @property
    def fields(self) -> tuple[int, int, int, int]:
        """What C++ gets of it (`CProduct`)."""
        return self[:4]

    @property
    def fp32_fields(self) -> tuple[int, int, int, int]:
        """The same for float32 results."""
        return self.run, self.layer, self.fp32_kind, self.out_features


class CProduct(ctypes.Structure):
    """The same for C++ (dflash/cpu.cpp)."""

    _fields_ = (
        ("run", ctypes.c_void_p),
        ("layer", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("outs", ctypes.c_int64),
    )


def native_product(layer: object) -> NativeProduct | None:
    """What native code can run of a linear layer; None for one that is not a single native product."""
    found: NativeProduct | None = getattr(layer, "product", None)
    return found

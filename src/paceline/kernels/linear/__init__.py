"""Linear layers: weights packed once, any number of rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import groupby

import torch

from paceline.kernels import build
from paceline.kernels.linear.base import Linear
from paceline.kernels.linear.biased import BiasedLinear
from paceline.kernels.linear.cpu import BLOCK, CpuLinear
from paceline.kernels.linear.gated import GatedLinear
from paceline.kernels.linear.probe import rows_are_independent
from paceline.kernels.linear.reference import ReferenceLinear
from paceline.kernels.linear.stacked import StackedLinear
from paceline.kernels.nvfp4 import CpuPackedLinear, PackedNVFP4, decode, packed_linear

Matrix = torch.Tensor | PackedNVFP4
"""A weight [N, K]: plain (bfloat16 or float32), or in 4 bits."""


def make_linear(weight: Matrix, *, deterministic: bool) -> Linear:
    """A layer for ``weight`` [N, K] on the weight's device.

    The native CPU layer copies the weight into its own packing and is row-invariant by construction; the
    torch one keeps ``weight`` and, if ``deterministic``, finds out by a probe how to be so. A weight in 4
    bits stays so where a native layer can multiply it, with the same results, and is decoded elsewhere.
    """
    if isinstance(weight, PackedNVFP4):
        packed = packed_linear(weight)
        if packed and not (deterministic and not rows_are_independent(packed, weight.dtype)):
            return packed
        weight = decode(weight)
    assert weight.dim() == 2 and weight.dtype in (torch.bfloat16, torch.float32), (weight.shape, weight.dtype)
    lib = build.library("linear") if weight.device.type == "cpu" else None
    if lib is None:
        return ReferenceLinear(weight, deterministic=deterministic)
    layer = CpuLinear(weight, lib)
    if deterministic and not rows_are_independent(layer, weight.dtype):
        warnings.warn(
            f"the native product of shape {tuple(weight.shape)} gave a row other bits in other company: "
            "it is replaced by padded torch products (slower, same text)",
            RuntimeWarning,
            stacklevel=2,
        )
        return ReferenceLinear(weight, deterministic=True)
    return layer


def make_gated(gate: Matrix, up: Matrix, *, deterministic: bool) -> Linear:
    """silu(x gateᵀ) * (x upᵀ) as one layer, [R, K] -> [R, I]; both matrices [I, K].

    One native call where the matrices are stored alike and I is a multiple of 16, with the bits of a product
    and `kernels.swiglu` after it, which run elsewhere.
    """
    layer = _native_gated(gate, up) if gate.shape[0] % BLOCK == 0 and type(gate) is type(up) else None
    if layer and not (deterministic and not rows_are_independent(layer, gate.dtype)):
        return layer
    return GatedLinear(make_fused([gate, up], deterministic=deterministic))


def _native_gated(gate: Matrix, up: Matrix) -> CpuLinear | CpuPackedLinear | None:
    if isinstance(gate, PackedNVFP4) and isinstance(up, PackedNVFP4):
        return packed_linear(PackedNVFP4.fused([gate, up]), gated=True)
    assert isinstance(gate, torch.Tensor) and isinstance(up, torch.Tensor)
    lib = build.library("linear") if gate.is_cpu else None
    return CpuLinear(torch.cat([gate, up]), lib, gated=True) if lib else None


def make_fused(weights: Sequence[Matrix], bias: torch.Tensor | None = None, *, deterministic: bool) -> Linear:
    """One layer of several matrices of the same input, its outputs in the order given.

    Neighbours that are stored alike become one product. bias: of all outputs, [N], or None.
    """
    layers = []
    for _, run in groupby(weights, type):
        matrices = list(run)
        packed = [matrix for matrix in matrices if isinstance(matrix, PackedNVFP4)]
        plain = [matrix for matrix in matrices if isinstance(matrix, torch.Tensor)]
        whole = PackedNVFP4.fused(packed) if packed else torch.cat(plain)
        layers.append(make_linear(whole, deterministic=deterministic))
    layer = layers[0] if len(layers) == 1 else StackedLinear(layers)
    return layer if bias is None else BiasedLinear(layer, bias)

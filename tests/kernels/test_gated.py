"""A SwiGLU's projections and gate in one call: the bits of a product and a gate after it."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels import nvfp4
from paceline.kernels.linear import make_fused, make_gated
from paceline.kernels.linear.cpu import CpuLinear
from paceline.kernels.linear.gated import GatedLinear
from paceline.kernels.nvfp4 import CpuPackedLinear, PackedNVFP4, cpu
from paceline.kernels.rows import interleaved
from paceline.kernels.swiglu.cpu import CpuSwiglu
from tests.kernels.invariance import (
    DTYPES,
    ROWS,
    assert_blind_to_others,
    assert_rows_independent,
    assert_threads_agree,
    library_for,
    machine_params,
    threads,
)
from tests.kernels.test_nvfp4 import matrix

SHAPES = [(16, 16), (48, 64), (80, 96), (352, 48)]
"""I and K."""


def test_gates_and_ups_in_turn():
    rows = torch.arange(8).reshape(8, 1)
    assert interleaved(rows, 2).flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_call_gives_the_bits_of_two(march, dtype, shape):
    lib, gate = library_for("linear", march), CpuSwiglu(library_for("swiglu", march))
    weight = torch.randn(2 * shape[0], shape[1]).to(dtype)
    layer, plain = CpuLinear(weight, lib, gated=True), CpuLinear(weight, lib)
    assert layer.out_features == shape[0]
    x = torch.randn(ROWS, shape[1]).to(dtype)
    assert torch.equal(layer(x), gate(plain(x)))
    assert_rows_independent(layer, x)
    assert_blind_to_others(layer, x)


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("shape", SHAPES)
def test_four_bits_give_the_bits_of_decoded_weights(march, shape):
    lib = library_for("nvfp4", march)
    if not cpu.has_product(lib):
        pytest.skip("no product over packed weights on such a CPU")
    packed = PackedNVFP4.fused([matrix(*shape), matrix(*shape)])
    layer = CpuPackedLinear(packed, lib, gated=True)
    plain = CpuLinear(nvfp4.decode(packed), library_for("linear", march), gated=True)
    x = torch.randn(ROWS, shape[1]).to(torch.bfloat16)
    assert torch.equal(layer(x), plain(x))
    assert_rows_independent(layer, x)
    with pytest.raises(AssertionError, match="bfloat16"):
        layer(x, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(dtype):
    weight, x = torch.randn(1472, 256).to(dtype), torch.randn(70, 256).to(dtype)
    lib, layers = library_for("linear", "native"), []
    for count in (1, 2, 3):
        with threads(count):
            layers.append(CpuLinear(weight, lib, gated=True))
    for layer in layers:
        assert_threads_agree(lambda layer=layer: layer(x))
        assert torch.equal(layer(x), layers[0](x))


@pytest.mark.parametrize("width", [48, 50])
def test_the_fallback_agrees(width):
    """A width that is no multiple of 16, and matrices that are stored differently, are composed."""
    library_for("linear", "native")
    gate, up = torch.randn(width, 64), torch.randn(width, 64)
    layer = make_gated(gate, up, deterministic=True)
    assert isinstance(layer, GatedLinear) == (width % 16 > 0)
    x = torch.randn(5, 64)
    composed = GatedLinear(make_fused([gate, up], deterministic=True))
    assert torch.equal(layer(x), composed(x)) and layer.out_features == composed.out_features == width
    four_bits = make_gated(matrix(48, 64), torch.randn(48, 64).to(torch.bfloat16), deterministic=True)
    assert isinstance(four_bits, GatedLinear)

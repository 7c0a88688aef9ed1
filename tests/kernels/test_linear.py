"""Linear layers: the packed CPU product and the torch reference."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels.linear import make_fused, make_linear, reference
from paceline.kernels.linear.cpu import CpuLinear
from paceline.kernels.linear.reference import ReferenceLinear
from paceline.kernels.memory import Arena
from tests.kernels.invariance import (
    DTYPES,
    ROWS,
    assert_blind_to_others,
    assert_rows_independent,
    assert_threads_agree,
    library_for,
    machine_params,
    threads,
    ulps,
)

SHAPES = [(1, 1), (16, 32), (33, 64), (100, 77), (320, 96)]


def error(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """Largest error against float64, relative to the sum of absolute products."""
    exact = x.double() @ weight.double().t()
    bound = x.double().abs() @ weight.double().abs().t()
    return ((out.double() - exact).abs() / bound.clamp(min=1e-30)).max().item()


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_product_is_right_and_rows_are_independent(march, dtype, shape):
    weight = torch.randn(shape).to(dtype)
    layer = CpuLinear(weight, library_for("linear", march))
    x = torch.randn(ROWS, shape[1]).to(dtype)
    wide = layer(x, torch.float32)
    assert error(wide, x, weight) < 1e-6
    assert torch.equal(layer(x), wide.to(dtype))
    assert_rows_independent(layer, x)
    assert_blind_to_others(layer, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_packing_change_no_bit(dtype):
    weight, x = torch.randn(1500, 512).to(dtype), torch.randn(70, 512).to(dtype)
    lib = library_for("linear", "native")
    layers = []
    for count in (1, 2, 3):
        with threads(count):
            layers.append(CpuLinear(weight, lib))
    for layer in layers:
        assert_threads_agree(lambda layer=layer: layer(x))
        assert torch.equal(layer(x), layers[0](x))
        assert torch.equal(layer(x)[66:67], layer(x[66:67]))


def test_strided_and_transposed_inputs():
    layer = CpuLinear(torch.randn(40, 64), library_for("linear", "native"))
    wide = torch.randn(5, 100)
    assert torch.equal(layer(wide[:, 20:84]), layer(wide[:, 20:84].contiguous()))
    columns = torch.randn(64, 5).t()
    assert torch.equal(layer(columns), layer(columns.contiguous()))
    assert layer(torch.empty(0, 64)).shape == (0, 40)


def test_odd_width_does_not_read_beyond_a_row():
    """The last bf16 pair of an odd row is half padding: the neighbour in memory must not enter it."""
    layer = CpuLinear(torch.randn(16, 7).bfloat16(), library_for("linear", "native"))
    memory = torch.full((4, 8), float("nan"), dtype=torch.bfloat16)
    memory[:, :7] = torch.randn(4, 7).bfloat16()
    assert not layer(memory[:, :7]).isnan().any()


def test_make_linear_reports_its_kind_and_checks_inputs():
    layer = make_linear(torch.randn(20, 10), deterministic=True)
    assert (layer.out_features, layer.in_features) == (20, 10)
    assert layer.kind.startswith(("cpu-", "torch-"))
    with pytest.raises(AssertionError):
        CpuLinear(torch.randn(4, 4), library_for("linear", "native"))(torch.randn(1, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 32), (100, 77)])
def test_deterministic_reference_has_independent_rows(dtype, shape):
    layer = ReferenceLinear(torch.randn(shape).to(dtype), deterministic=True)
    assert layer.kind in ("torch-direct", "torch-tile", "torch-row")
    x = torch.randn(ROWS, shape[1]).to(dtype)
    assert_rows_independent(layer, x, counts=(1, 2, 3, 8, 16, 31, 32, 33, 40))
    if layer.kind != "torch-direct":  # zero padding or single rows: no neighbour at all
        assert torch.equal(layer(x)[:1], layer(x[:1]))


@pytest.mark.parametrize("plan", ["direct", "tile", "row"])
def test_every_plan_computes_the_same_product(plan):
    weight, x = torch.randn(12, 20), torch.randn(37, 20)
    out = reference.in_tiles(x, weight, torch.float32, plan)
    torch.testing.assert_close(out, x @ weight.t())


def test_plain_reference_takes_any_number_of_rows():
    layer = ReferenceLinear(torch.randn(6, 5), deterministic=False)
    assert layer.kind == "torch" and layer(torch.randn(0, 5)).shape == (0, 6)
    assert layer(torch.randn(3, 5), torch.float32).dtype is torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_is_added_before_the_one_rounding(dtype):
    weights, bias = [torch.randn(n, 77).to(dtype) for n in (40, 20)], torch.randn(60).to(dtype) * 4
    layer = make_fused(weights, bias, deterministic=True)
    assert (layer.in_features, layer.out_features) == (77, 60) and layer.kind.endswith("+bias")
    x = torch.randn(ROWS, 77).to(dtype)
    sums = make_fused(weights, deterministic=True)(x, torch.float32)
    assert torch.equal(layer(x, torch.float32), sums + bias.float())
    assert torch.equal(layer(x), (sums + bias.float()).to(dtype))
    expected = torch.nn.functional.linear(x.double(), torch.cat(weights).double(), bias.double())
    torch.testing.assert_close(layer(x).double(), expected, rtol=ulps(dtype), atol=ulps(dtype))
    assert_rows_independent(layer, x, counts=(1, 2, 3, 8, 17, 40))


def test_arena_pieces_are_aligned_and_apart():
    arena = Arena()
    first, second = arena.empty((3, 5), torch.float32), arena.empty((7,), torch.bfloat16)
    huge = arena.empty((9 << 20,), torch.float32)  # larger than an arena
    assert all(t.data_ptr() % 64 == 0 for t in (first, second, huge))
    first.fill_(1)
    second.fill_(2)
    assert first.eq(1).all() and second.eq(2).all()

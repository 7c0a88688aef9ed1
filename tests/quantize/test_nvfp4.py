"""NVFP4 numbers against definitions that share no code with them."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
import torch

from paceline.quantize import nvfp4
from paceline.quantize.scale_search import e4m3_table

VALUES = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
CHOICES = ["max", "four-over-six", "mse"]


def nearest_code(value: float) -> int:
    """By the definition: the nearest value, of two as near the one with the even code."""
    magnitude = abs(Fraction(value))
    code = min(range(8), key=lambda i: (abs(VALUES[i] - magnitude), i % 2))
    return code + (8 if value < 0 else 0)


def around(value: float) -> list[float]:
    """A float32 and its neighbours."""
    point = torch.tensor(value)
    down, up = (torch.nextafter(point, torch.tensor(end)).item() for end in (-9.0, 9.0))
    return [down, point.item(), up]


def quantized(weight, choice="max"):
    return nvfp4.quantize(weight, nvfp4.global_scale(weight.abs().amax(), choice), choice)


def test_rounding_at_every_threshold_and_its_float_neighbours():
    points = [0.0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 1e-30, 1e-7]
    values = [sign * near for point in points for near in around(point) for sign in (1, -1)]
    codes = nvfp4.e2m1_codes(torch.tensor(values))
    assert codes.tolist() == [nearest_code(value) for value in values]


def test_rounding_of_random_values():
    values = torch.randn(2000) * 3
    assert nvfp4.e2m1_codes(values).tolist() == [nearest_code(value) for value in values.tolist()]


def test_packing_puts_even_columns_low():
    codes = torch.randint(0, 16, (3, 32), dtype=torch.uint8)
    packed = nvfp4.pack(codes)
    assert packed[1, 2] == codes[1, 4] + 16 * codes[1, 5]
    assert torch.equal(nvfp4.unpack(packed), codes)


def test_scales_by_the_formula():
    weight = torch.randn(4, 64) * torch.logspace(-4, 1, 4)[:, None]
    matrix = quantized(weight)
    s2 = weight.abs().max() / 2688
    assert matrix.global_scale == s2 and matrix.global_scale.shape == ()
    expected = (weight.view(4, 4, 16).abs().amax(-1) / (6 * s2)).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    assert torch.equal(matrix.scales.view(torch.uint8), expected.view(torch.uint8))
    by_hand = torch.tensor(nvfp4.E2M1 + tuple(-v for v in nvfp4.E2M1))[nvfp4.unpack(matrix.packed).long()]
    by_hand = by_hand.view(4, 4, 16) * (matrix.scales.float() * matrix.global_scale)[..., None]
    assert torch.equal(nvfp4.dequantize(matrix), by_hand.view(4, 64))


def test_pieces_change_nothing(monkeypatch):
    weight = torch.randn(7, 48, dtype=torch.bfloat16)
    for choice in CHOICES:
        whole = quantized(weight, choice)
        with monkeypatch.context() as patch:
            patch.setattr(nvfp4, "_PIECE", 100)
            parts = quantized(weight, choice)
            assert torch.equal(nvfp4.dequantize(parts), nvfp4.dequantize(whole))
        assert torch.equal(whole.packed, parts.packed)
        assert torch.equal(whole.scales.view(torch.uint8), parts.scales.view(torch.uint8))


@pytest.mark.parametrize("choice", CHOICES)
def test_a_dequantised_matrix_quantises_to_itself_in_value(choice):
    """Values on the grid are kept exactly under the same global scale."""
    weight = torch.randn(8, 64)
    first = quantized(weight, choice)
    values = nvfp4.dequantize(first)
    again = nvfp4.quantize(values, first.global_scale, "mse")
    assert torch.equal(nvfp4.dequantize(again), values)


@pytest.mark.parametrize("choice", CHOICES)
def test_zeros_and_tiny_blocks_stay_finite(choice):
    weight = torch.zeros(4, 32)
    assert torch.equal(nvfp4.dequantize(quantized(weight, choice)), weight)
    weight[0, 0], weight[1, 0], weight[2, 16] = 3.0, 1e-12, -1e-3
    values = nvfp4.dequantize(quantized(weight, choice))
    assert values.isfinite().all() and (values - weight).abs().max() <= 3 / 2688 + 3 * 2**-9
    assert quantized(weight, choice).scales.float().min() >= 2**-9


@pytest.mark.parametrize(("choice", "expected"), [("max", 0.095), ("four-over-six", 0.087), ("mse", 0.081)])
def test_error_on_gaussian_weights(choice, expected):
    weight = torch.randn(256, 512)
    error = nvfp4.dequantize(quantized(weight, choice)) - weight
    assert (error.norm() / weight.norm()).item() == pytest.approx(expected, abs=0.002)


def brute_force(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The least squared error of each block over all 126 scales."""
    blocks = weight.view(-1, 16)
    errors = []
    for value in e4m3_table(weight.device)[1:]:
        step = value * scale
        codes = nvfp4.e2m1_codes(blocks / step).long()
        table = torch.tensor(nvfp4.E2M1 + tuple(-v for v in nvfp4.E2M1))
        errors.append((table[codes] * step - blocks).square().sum(1))
    return torch.stack(errors).amin(0)


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "tiny", "ties", "outliers"])
def test_the_pruned_search_finds_what_all_scales_find(kind):
    weight = torch.randn(64, 64)
    if kind == "heavy":
        weight = weight**5
    elif kind == "tiny":  # block scales among the subnormal ones
        weight = weight * torch.logspace(-5, -1, 64)[:, None]
        weight[0, 0] = 100.0
    elif kind == "ties":
        weight = torch.randint(-8, 9, (64, 64)) / 2.0
    elif kind == "outliers":
        weight[:, ::16] *= 30
    scale = nvfp4.global_scale(weight.abs().amax())
    found = (nvfp4.dequantize(nvfp4.quantize(weight, scale, "mse")) - weight).view(-1, 16).square().sum(1)
    torch.testing.assert_close(found, brute_force(weight, scale), rtol=1e-5, atol=1e-12)


def test_four_over_six_is_never_worse_than_six():
    weight = torch.randn(32, 64)
    scale = nvfp4.global_scale(weight.abs().amax(), "four-over-six")
    error = {
        choice: (nvfp4.dequantize(nvfp4.quantize(weight, scale, choice)) - weight)
        .view(-1, 16)
        .square()
        .sum(1)
        for choice in ("max", "four-over-six")
    }
    assert (error["four-over-six"] <= error["max"] * (1 + 1e-6)).all()
    assert (error["four-over-six"] < error["max"]).any()


@pytest.mark.slow
def test_packing_speed():
    weight = torch.randn(2048, 2048, dtype=torch.bfloat16)
    rates = {}
    for choice in CHOICES:
        quantized(weight[:64], choice)
        start = time.perf_counter()
        quantized(weight, choice)
        rates[choice] = weight.numel() / (time.perf_counter() - start) / 1e6
    print({choice: f"{rate:.1f} M weights/s" for choice, rate in rates.items()})
    assert rates["max"] >= 10  # alone on two cores it is well above the 25 that are promised

"""RMS norms: native code against the reference, row by row."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels import norm
from paceline.kernels.norm import reference
from paceline.kernels.norm.cpu import CpuNorm
from tests.kernels.invariance import (
    DTYPES,
    ROWS,
    assert_blind_to_others,
    assert_rows_independent,
    assert_threads_agree,
    library_for,
    machine_params,
    ulps,
)

EPS = 1e-6


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_centred", [True, False])
@pytest.mark.parametrize("width", [1, 16, 77, 320])
def test_native_equals_reference(march, dtype, zero_centred, width):
    native = CpuNorm(library_for("norm", march))
    x, residual, weight = (torch.randn(s, width).to(dtype) for s in (5, 5, 1))
    weight = weight[0]
    expected = reference.rms_norm(x, weight, EPS, zero_centred)
    out = native.rms_norm(x, weight, EPS, zero_centred)
    torch.testing.assert_close(out, expected, rtol=ulps(dtype), atol=1e-6)
    normed, total = native.add_rms_norm(x, residual, weight, EPS, zero_centred)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, EPS, zero_centred)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected, rtol=ulps(dtype), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [77, 320])
@pytest.mark.parametrize("module", [norm, reference])
def test_rows_are_independent(module, dtype, width):
    weight = torch.randn(width).to(dtype)
    x, residual = torch.randn(ROWS, width).to(dtype), torch.randn(ROWS, width).to(dtype)
    assert_rows_independent(lambda x: module.rms_norm(x, weight, EPS, True), x)
    assert_rows_independent(lambda x: module.rms_norm(x, weight, EPS, False), x)
    assert_rows_independent(lambda x, r: module.add_rms_norm(x, r, weight, EPS, True)[0], x, residual)
    assert_blind_to_others(lambda x: module.rms_norm(x, weight, EPS, True), x)


@pytest.mark.parametrize("module", [norm, reference])
def test_threads_agree(module):
    x, weight = torch.randn(300, 512), torch.randn(512)
    assert_threads_agree(lambda: module.rms_norm(x, weight, EPS, True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows(dtype):
    wide, weight = torch.randn(6, 100).to(dtype), torch.randn(33).to(dtype)
    x = wide[:, 10:43]
    assert torch.equal(norm.rms_norm(x, weight, EPS, True), norm.rms_norm(x.contiguous(), weight, EPS, True))
    normed, total = norm.add_rms_norm(x, wide[:, 50:83], weight, EPS, True)
    assert normed.is_contiguous() and torch.equal(total, wide[:, 50:83] + x)


def test_no_rows():
    assert norm.rms_norm(torch.empty(0, 8), torch.ones(8), EPS, True).shape == (0, 8)

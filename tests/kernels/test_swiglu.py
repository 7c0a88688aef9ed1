"""SwiGLU: native code against the reference, row by row."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels import swiglu as package
from paceline.kernels.swiglu import reference
from paceline.kernels.swiglu.cpu import CpuSwiglu
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


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 77, 352])
def test_native_equals_reference(march, dtype, width):
    native = CpuSwiglu(library_for("swiglu", march))
    x = (torch.randn(5, 2 * width) * 5).to(dtype)
    torch.testing.assert_close(native(x), reference.swiglu(x), rtol=ulps(dtype), atol=1e-6)


@pytest.mark.parametrize("march", machine_params())
def test_extreme_gates(march):
    gates = [-1e30, -1e4, -100.0, -88.0, -1.0, -0.0, 0.0, 88.0, 1e4, 1e30, float("inf"), float("nan")]
    x = torch.cat([torch.tensor([gates]), torch.ones(1, len(gates))], dim=1)
    out = CpuSwiglu(library_for("swiglu", march))(x)
    torch.testing.assert_close(out, reference.swiglu(x), rtol=4e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [77, 352])
@pytest.mark.parametrize("module", [package, reference])
def test_rows_are_independent(module, dtype, width):
    x = (torch.randn(ROWS, 2 * width) * 3).to(dtype)
    assert_rows_independent(module.swiglu, x)
    assert_blind_to_others(module.swiglu, x)


@pytest.mark.parametrize("module", [package, reference])
def test_threads_and_strides_agree(module):
    x = torch.randn(60, 1500)
    assert_threads_agree(lambda: module.swiglu(x))
    assert torch.equal(module.swiglu(x[:, 3:1403]), module.swiglu(x[:, 3:1403].contiguous()))
    assert module.swiglu(x[:0]).shape == (0, 750)

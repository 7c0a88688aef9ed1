"""NVFP4: decoding bit for bit, and products over packed weights that equal those over decoded ones."""

from __future__ import annotations

import warnings

import pytest
import torch

from paceline.kernels import build, nvfp4
from paceline.kernels.linear import make_fused, make_linear
from paceline.kernels.linear.cpu import CpuLinear
from paceline.kernels.linear.stacked import StackedLinear
from paceline.kernels.nvfp4 import PackedNVFP4, cpu, reference
from tests.kernels.invariance import (
    DTYPES,
    ROWS,
    assert_blind_to_others,
    assert_rows_independent,
    assert_threads_agree,
    library_for,
    machine_params,
)

SHAPES = [(1, 16), (16, 64), (33, 48), (100, 80), (320, 96)]
BF16 = torch.bfloat16


def matrix(outs: int, width: int, dtype: torch.dtype = BF16, global_scale: float = 1e-4) -> PackedNVFP4:
    """Every code, every scale (zero included), and a global scale of its own for each row."""
    scales = torch.randint(0, 0x7F, (outs, width // 16), dtype=torch.uint8)
    return PackedNVFP4(
        torch.randint(0, 256, (outs, width // 2), dtype=torch.uint8),
        scales.view(torch.float8_e4m3fn),
        (torch.rand(outs) + 0.5) * global_scale,
        dtype,
    )


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16 if x.dtype is BF16 else torch.int32)


def test_the_reference_follows_the_definition():
    """value = e2m1[code] * (block scale * global scale), the low half of a byte first."""
    codes = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    scale = torch.tensor([[1.5]]).to(torch.float8_e4m3fn)
    one = PackedNVFP4.of(codes, scale, torch.tensor(0.3), torch.float32)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    expected = torch.cat([magnitudes, -magnitudes]) * (torch.tensor(1.5) * torch.tensor(0.3))
    assert torch.equal(reference.decode(one)[0], expected)
    assert one.shape == (1, 16)


@pytest.mark.parametrize("march", machine_params())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_native_decoding_has_the_reference_s_bits(march, dtype, shape):
    m = matrix(*shape, dtype)
    assert torch.equal(bits(cpu.decode(m, library_for("nvfp4", march))), bits(reference.decode(m)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_on_a_gpu_has_the_same_bits(dtype):
    m = matrix(33, 48, dtype)
    parts = (part.cuda() for part in (m.codes, m.scales, m.global_scale))
    assert torch.equal(bits(nvfp4.decode(PackedNVFP4(*parts, dtype)).cpu()), bits(reference.decode(m)))


def test_decoding_works_in_pieces(monkeypatch):
    m = matrix(9, 64)
    whole = reference.decode(m)
    monkeypatch.setattr(reference, "PIECE", 130)
    assert torch.equal(reference.decode(m), whole)


@pytest.mark.parametrize("march", ["native", pytest.param("skylake-avx512", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_product_has_the_bits_of_the_decoded_one(march, shape):
    lib = library_for("nvfp4", march)
    if not cpu.has_product(lib):
        pytest.skip("this CPU has no AVX-512")
    m = matrix(*shape)
    packed, plain = cpu.CpuPackedLinear(m, lib), CpuLinear(reference.decode(m), library_for("linear", march))
    x = torch.randn(ROWS, shape[1]).to(BF16)
    for out_dtype in (None, torch.float32):
        assert torch.equal(bits(packed(x, out_dtype)), bits(plain(x, out_dtype)))
    assert_rows_independent(packed, x)
    assert_blind_to_others(packed, x)


def native_layer(m: PackedNVFP4) -> cpu.CpuPackedLinear:
    layer = nvfp4.packed_linear(m)
    if layer is None:
        pytest.skip("no packed product here")
    return layer


@pytest.mark.parametrize("global_scale", [2.0**-90, 3e-9, 1.0, 2.0**90])
def test_any_global_scale(global_scale):
    m = matrix(40, 128, global_scale=global_scale)
    x = torch.randn(3, 128).to(BF16)
    plain = CpuLinear(reference.decode(m), library_for("linear", "native"))
    assert torch.equal(native_layer(m)(x, torch.float32), plain(x, torch.float32))


def test_threads_change_no_bit():
    layer, x = native_layer(matrix(1500, 512)), torch.randn(70, 512).to(BF16)
    assert_threads_agree(lambda: layer(x))


def test_strided_inputs_and_no_rows():
    layer = native_layer(matrix(40, 64))
    wide = torch.randn(5, 100).to(BF16)
    assert torch.equal(layer(wide[:, 20:84]), layer(wide[:, 20:84].contiguous()))
    assert torch.equal(layer(wide.t()[:64].t()), layer(wide[:, :64]))
    columns = torch.randn(64, 5).to(BF16).t()
    assert torch.equal(layer(columns), layer(columns.contiguous()))
    assert layer(wide[:0, :64]).shape == (0, 40)
    with pytest.raises(AssertionError):
        layer(wide)


def test_weights_stay_in_four_bits():
    """4 bits a weight and 8 a block of 16."""
    assert native_layer(matrix(64, 256)).nbytes == 64 * 256 * 9 // 16


def test_fused_matrices_keep_their_own_scales():
    first, second = matrix(24, 64, global_scale=1e-3), matrix(40, 64, global_scale=1e-5)
    fused = make_fused([first, second], deterministic=True)
    native_layer(first)
    assert isinstance(fused, cpu.CpuPackedLinear)
    x = torch.randn(4, 64).to(BF16)
    apart = [make_linear(m, deterministic=True)(x) for m in (first, second)]
    assert torch.equal(fused(x), torch.cat(apart, 1))


def test_plain_and_packed_side_by_side():
    m, plain = matrix(24, 64), torch.randn(10, 64).to(BF16)
    native_layer(m)
    stacked = make_fused([m, plain], deterministic=True)
    assert isinstance(stacked, StackedLinear) and stacked.kind.endswith(
        "-nvfp4+" + stacked.kind.split("+")[1]
    )
    assert (stacked.in_features, stacked.out_features) == (64, 34)
    whole = make_linear(torch.cat([reference.decode(m), plain]), deterministic=True)
    x = torch.randn(5, 64).to(BF16)
    assert torch.equal(stacked(x, torch.float32), whole(x, torch.float32))


@pytest.mark.parametrize("dtype,scale", [(torch.float32, 1e-4), (BF16, 2.0**-110)])
def test_what_cannot_stay_packed_is_decoded(dtype, scale):
    m = matrix(20, 32, dtype, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        layer = make_linear(m, deterministic=True)
    assert "nvfp4" not in layer.kind
    x = torch.randn(3, 32).to(dtype)
    assert torch.equal(layer(x), make_linear(reference.decode(m), deterministic=True)(x))


@pytest.mark.parametrize("isa", [None, 1], ids=["no compiler", "AVX2"])
def test_machines_without_the_product_say_so_once(isa, monkeypatch):
    class Lesser:
        def paceline_isa(self) -> int:
            return 1

    monkeypatch.setattr(build, "library", lambda op, march="native": Lesser() if isa else None)
    nvfp4._refused.cache_clear()
    with pytest.warns(RuntimeWarning, match="AVX-512"):
        assert not nvfp4.packed_product(torch.device("cpu"), BF16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not nvfp4.packed_product(torch.device("cpu"), BF16)
    nvfp4._refused.cache_clear()

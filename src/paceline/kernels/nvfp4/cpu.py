"""Native NVFP4 on the CPU: decoding, and the linear layer that keeps 4 bits (layout: ``cpu.cpp``)."""

from __future__ import annotations

import ctypes

import torch

from paceline.kernels import build
from paceline.kernels.memory import WEIGHTS
from paceline.kernels.nvfp4.base import PackedNVFP4
from paceline.kernels.product import NativeProduct

OUTPUTS = 16  # that share a register
CHUNK, CHUNK_BYTES = 64, 576  # inputs of a chunk, and its bytes for one block of outputs
_AVX512 = 2
_TINY, _HUGE = 2.0**-100, 2.0**100


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("globals", ctypes.c_void_p),
        ("outs", ctypes.c_int64),
        ("k", ctypes.c_int64),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("globals", ctypes.c_void_p),
        ("outs", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("panels", ctypes.c_int64),
    )


def decode(matrix: PackedNVFP4, lib: ctypes.CDLL) -> torch.Tensor:
    """The weights [N, K] in `matrix.dtype`, bit for bit as the reference decodes them."""
    matrix, view = _viewed(matrix)
    weights = torch.empty(matrix.shape, dtype=matrix.dtype)
    run = build.declare(lib, "nvfp4_decode", "pip")
    run(ctypes.addressof(view), int(matrix.dtype is torch.bfloat16), weights.data_ptr())
    return weights


def has_product(lib: ctypes.CDLL) -> bool:
    """Whether the library can multiply packed weights: it needs AVX-512."""
    return lib.paceline_isa() >= _AVX512


def in_range(matrix: PackedNVFP4) -> bool:
    """Whether every decoded weight is a normal bfloat16: the product builds weights by adding exponents."""
    scale = matrix.global_scale
    return bool(((scale > _TINY) & (scale < _HUGE)).all())


class CpuPackedLinear:
    """y = x Wᵀ over NVFP4 weights: the same bits as `CpuLinear` over the decoded ones, for any rows.

    matrix: decodes to bfloat16, `in_range`; copied, so that the caller may drop its own.
    """

    def __init__(self, matrix: PackedNVFP4, lib: ctypes.CDLL, *, gated: bool = False) -> None:
        """gated: as in `CpuLinear`."""
        assert matrix.dtype is torch.bfloat16 and has_product(lib) and in_range(matrix)
        outs, self.in_features = matrix.shape
        self.out_features = outs // 2 if gated else outs
        self.kind = f"{build.ISA_NAMES[lib.paceline_isa()]}-nvfp4" + ("-gated" if gated else "")
        name = "nvfp4_gated_run" if gated else "nvfp4_run"
        self._run, self._gated = build.declare(lib, name, "pipiip"), gated
        self._memory = (
            _pack(matrix.interleaved(), lib, outs // (2 * OUTPUTS)) if gated else _pack(matrix, lib)
        )
        self._layer = self._memory[0]
        self._address = ctypes.addressof(self._layer)
        self.product = NativeProduct(build.address(lib, name), self._address, 0, self.out_features, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._memory[1].numel()

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """x [R, K] bfloat16 -> [R, N] in ``out_dtype``: bfloat16 (the default) or float32."""
        rows, width = x.shape
        assert width == self.in_features and x.dtype is torch.bfloat16, (x.shape, x.dtype, self.in_features)
        row_stride, column_stride = x.stride()
        if column_stride != 1:
            x = x.contiguous()
            row_stride = width
        out = torch.empty(rows, self.out_features, dtype=out_dtype or torch.bfloat16)
        fp32 = int(out_dtype is torch.float32)
        assert not (fp32 and self._gated), "the gate's result is bfloat16"
        self._run(self._address, fp32, x.data_ptr(), row_stride, rows, out.data_ptr())
        return out


def _viewed(matrix: PackedNVFP4) -> tuple[PackedNVFP4, _Matrix]:
    """The matrix in contiguous memory, and its description for the native code (which borrows it)."""
    parts = (matrix.codes.contiguous(), matrix.scales.contiguous(), matrix.global_scale.contiguous())
    held = PackedNVFP4(*parts, matrix.dtype)
    return held, _Matrix(*(part.data_ptr() for part in parts), *matrix.shape)


def _pack(
    matrix: PackedNVFP4, lib: ctypes.CDLL, panels: int = 0
) -> tuple[_Layer, torch.Tensor, torch.Tensor]:
    """The layer's description, its weights and its global scales; the first points into the others."""
    matrix, view = _viewed(matrix)
    outs, k = matrix.shape
    blocks, threads = -(-outs // OUTPUTS), torch.get_num_threads()
    # As many panels as threads divide evenly; how blocks are grouped does not change a sum.
    panels = panels or min(blocks, -(-blocks // (lib.nvfp4_max_width() * threads)) * threads)
    packed = WEIGHTS.empty((blocks * -(-k // CHUNK) * CHUNK_BYTES,), torch.uint8)
    scales = torch.zeros(blocks * OUTPUTS)
    scales[:outs] = matrix.global_scale * 256.0  # makes up for e4m3 read as half precision
    layer = _Layer(packed.data_ptr(), scales.data_ptr(), outs, k, blocks, panels)
    pack = build.declare(lib, "nvfp4_pack", "ppp")
    pack(ctypes.addressof(view), ctypes.addressof(layer), packed.data_ptr())
    return layer, packed, scales

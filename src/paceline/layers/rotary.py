"""Rotary position tables: cosines and sines of every position, made once at load.

Sources: YaRN is Peng et al. 2023 (arXiv 2309.00071), section 3.4; Llama 3.1's rule is transformers'
`_compute_llama3_parameters`. tests/layers/test_rotary.py checks both against transformers' own tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN's parameters: frequencies slower than `beta_slow` turns are divided by `factor`, faster than
    `beta_fast` are kept, those between are blended."""

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def table_scale(self) -> float:
        """The factor on cosines and sines (YaRN's attention temperature)."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
        return _mscale(self.factor, 1.0)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's rule: pairs that turn less than `low_freq_factor` times within the original length are
    slowed by `factor`, those above `high_freq_factor` turns are kept, those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions rotate the first `rotary_dim` of a head's dimensions (pairs i, i + rotary_dim/2); at most
    one of the two scalings is set."""

    theta: float
    rotary_dim: int
    yarn: YarnScaling | None = None
    llama3: Llama3Scaling | None = None


TABLE_SLACK = 256
"""Rows of the tables past the last position: a multi-token head and padded rows run a little beyond it."""


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """`cos` and `sin` [positions + TABLE_SLACK, rotary_dim/2] in model dtype."""

    cos: torch.Tensor
    sin: torch.Tensor


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """Angle per position of each pair: [rotary_dim/2] float32."""
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.int64).float() / spec.rotary_dim
    plain = 1.0 / (spec.theta**exponents)
    if spec.llama3 is not None:
        return _llama3(plain, spec.llama3)
    if spec.yarn is None:
        return plain
    low, high = _blend_range(spec, spec.yarn)
    ramp = (torch.arange(spec.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)
    slow = ramp.clamp(0, 1)
    return plain / spec.yarn.factor * slow + plain * (1 - slow)


def rotary_tables(
    spec: RopeSpec, positions: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> RotaryTables:
    """Tables for positions 0..positions-1 and some slack.

    Computed in float32 on the CPU, so that every device reads the same values.
    """
    angles = torch.outer(torch.arange(positions + TABLE_SLACK).float(), inverse_frequencies(spec))
    scale = 1.0 if spec.yarn is None else spec.yarn.table_scale
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return RotaryTables(cos.to(device, dtype), sin.to(device, dtype))


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    turns = scaling.original_max_position / (2 * math.pi / plain)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * (1 - kept) + plain * kept


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _blend_range(spec: RopeSpec, yarn: YarnScaling) -> tuple[float, float]:
    """First and last pair of the blend between kept and interpolated frequencies."""

    def pair_of(turns: float) -> float:
        wavelength_ratio = yarn.original_max_position / (turns * 2 * math.pi)
        return spec.rotary_dim * math.log(wavelength_ratio) / (2 * math.log(spec.theta))

    low, high = pair_of(yarn.beta_fast), pair_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    return low, high if high != low else low + 0.001

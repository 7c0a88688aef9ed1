"""Training under NVFP4's rounding: the values that the quantiser stores, and gradients that pass."""

from __future__ import annotations

import pytest
import torch

from paceline.quantize.nvfp4 import dequantize, global_scale, quantize
from paceline.quantize.recipe import BUILT_IN
from paceline.train.modules.four_bits import PATTERNS, read_in_four_bits, rounded, through_four_bits
from paceline.train.modules.load import load_train_target
from tests.tiny import make_target


def stored(weight):
    weight = weight.bfloat16()
    return dequantize(quantize(weight, global_scale(weight.abs().amax())))


@pytest.mark.parametrize("scale", [1e-4, 0.03, 1.0, 300.0])
def test_values_are_those_that_the_quantiser_stores(scale):
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)) * scale
    weight[3, 16:32] = 0
    weight[5, 0] = 40 * scale
    assert torch.equal(rounded(weight), stored(weight))


def test_ties_and_zeros():
    row = torch.tensor(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -2.5, -5.0, 0, -0.0, 0.1, 7.0, -6.5]
    )
    assert torch.equal(rounded(row[None]), stored(row[None]))
    assert torch.equal(rounded(torch.zeros(2, 16)), torch.zeros(2, 16))


def test_gradients_pass_as_if_nothing_was_rounded():
    weight = torch.randn(4, 32, requires_grad=True)
    loss = torch.randn(4, 32)
    (through_four_bits(weight) * loss).sum().backward()
    assert torch.equal(weight.grad, loss)


def test_patterns_are_those_of_the_recipes():
    for name, patterns in PATTERNS.items():
        assert {p.replace("*.", "*") for p in (r.match for r in BUILT_IN[name].rules)} == set(patterns)


def test_a_target_reads_its_matrices_in_four_bits(tmp_path):
    folder = make_target(tmp_path / "target", "plain", dtype=torch.float32)
    plain, coarse = load_train_target(folder), load_train_target(folder)
    count = read_in_four_bits(coarse, "xs")
    ids = torch.randint(3, 90, (1, 20))
    hidden = coarse(ids)[0]
    assert not torch.allclose(hidden, plain(ids)[0], atol=1e-3)
    changed = 0
    with torch.no_grad():
        for name, part in plain.named_modules():
            if (
                any(leaf in name for leaf in ("_proj", "in_proj_qkv", "in_proj_z"))
                and "in_proj_a" not in name
            ):
                if name.endswith(("in_proj_b", "in_proj_a")):
                    continue
                part.weight.copy_(rounded(part.weight))
                changed += 1
    assert count == changed
    assert torch.equal(plain(ids)[0], hidden)

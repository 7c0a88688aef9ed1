"""The fused delta rule and convolution on a GPU against the definition and the plain forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.train.modules import conv, delta_fla
from tests.train.modules import delta_cases as cases

pytestmark = pytest.mark.gpu
BF16 = 1.2e-2
"""Relative error of a few bf16 roundings in a row; a wrong kernel is off by 1e-1 or more."""

SHAPES = [(9, 9, 64, 64), (2, 4, 128, 128), (2, 4, 64, 64), (1, 2, 128, 64), (1, 2, 32, 128)]


@pytest.fixture(autouse=True)
def fast_path():
    pytest.importorskip("fla")
    assert delta_fla.delta_path() == "fla"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [192, 150])
@pytest.mark.parametrize("state", [False, True])
def test_delta_equals_the_recurrence(shape, length, state):
    resets = () if state else (0, 5, 63, 64, 100, 149)
    rounded = cases.inputs(2, length, *shape, resets=resets, state=state, dtype=torch.bfloat16, device="cuda")
    exact = [None if x is None else x.double() for x in rounded]
    want = cases.values_and_gradients(cases.recurrence, exact, use_last=state)
    got = cases.values_and_gradients(delta_fla.chunk_gated_delta, rounded, use_last=state)
    errors = cases.errors(got, want)
    print(shape, length, state, {name: f"{error:.1e}" for name, error in errors.items()})
    assert max(errors.values()) < BF16


@pytest.mark.parametrize("length", [1024, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_conv_equals_the_plain_form(length, packed):
    torch.manual_seed(0)
    u = torch.randn(3, length, 1728, device="cuda").bfloat16()
    weight = torch.randn(1728, 4, device="cuda")
    documents = torch.randint(0, 300, (3, length), device="cuda").sort(1)[0] if packed else None
    upstream = torch.randn_like(u)

    def run(form, dtype):
        a, w = u.to(dtype).requires_grad_(), weight.bfloat16().to(dtype).requires_grad_()
        y = form(a, w, documents)
        return y.detach(), *torch.autograd.grad(y, (a, w), upstream.to(dtype))

    got, want = run(conv.causal_conv_silu, torch.bfloat16), run(conv.plain_conv_silu, torch.float32)
    errors = [float((a.float() - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)]
    print("conv", length, packed, [f"{error:.1e}" for error in errors])
    assert max(errors) < 4e-3


def block(x, weight, documents, g, beta):
    """Convolution, heads and delta rule as a layer has them: [B, T, 3 * 2 * 64] -> [B, T, 2, 64]."""
    q, k, v = (y.unflatten(-1, (2, 64)) for y in conv.causal_conv_silu(x, weight, documents).chunk(3, -1))
    q, k = (F.normalize(y.float(), dim=-1) for y in (q, k))
    return delta_fla.chunk_gated_delta(q / 8, k, v, g, beta)[0]


def test_a_block_compiles_to_one_graph():
    torch.manual_seed(0)
    x = torch.randn(2, 256, 384, device="cuda").bfloat16()
    weight = torch.randn(384, 4, device="cuda")
    documents = (torch.arange(256, device="cuda") // 100).expand(2, -1)
    g = -torch.rand(2, 256, 2, device="cuda")
    g[:, [0, 100, 200]] = cases.RESET
    beta = torch.rand(2, 256, 2, device="cuda").bfloat16()

    def run(form):
        arguments = [y.clone().requires_grad_() for y in (x, weight, g, beta)]
        out = form(arguments[0], arguments[1], documents, *arguments[2:])
        return out.detach(), *torch.autograd.grad(out.float().square().sum(), arguments)

    for a, b in zip(run(torch.compile(block, fullgraph=True)), run(block), strict=True):
        assert a.isfinite().all()
        assert (a.float() - b.float()).norm() < 5e-3 * b.float().norm()

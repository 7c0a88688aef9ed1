"""SiLU of the short convolution: the plain form against torch's own convolution, one document at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.train.modules.conv import causal_conv_silu, plain_conv_silu


def own_document(u, weight):
    """[1, T, C] by torch's grouped convolution."""
    padded = F.pad(u.transpose(1, 2), (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight.unsqueeze(1), groups=weight.shape[0])).transpose(1, 2)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_equals_torchs_convolution(width):
    torch.manual_seed(0)
    u, weight = torch.randn(3, 11, 6), torch.randn(6, width)
    torch.testing.assert_close(causal_conv_silu(u, weight), own_document(u, weight))


@pytest.mark.parametrize("lengths", [[11], [1, 10], [2, 1, 1, 3, 4], [10, 1]])
def test_documents_do_not_see_each_other(lengths):
    torch.manual_seed(1)
    u, weight = torch.randn(1, 11, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).unsqueeze(0)
    packed = causal_conv_silu(u, weight, documents)
    alone = torch.cat([own_document(part, weight) for part in u.split(lengths, 1)], 1)
    torch.testing.assert_close(packed, alone)
    upstream = torch.randn_like(packed)
    for got, want in zip(
        torch.autograd.grad(packed, (u, weight), upstream),
        torch.autograd.grad(alone, (u, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_half_precision_rounds_the_taps_and_keeps_the_dtype():
    torch.manual_seed(2)
    u, weight = torch.randn(2, 9, 4).bfloat16(), torch.randn(4, 4)
    y = plain_conv_silu(u, weight)
    assert y.dtype == torch.bfloat16
    exact = own_document(u.double(), weight.bfloat16().double())
    torch.testing.assert_close(y.double(), exact, rtol=4e-3, atol=1e-6)


def test_one_graph():
    u, weight = torch.randn(1, 8, 4), torch.randn(4, 4)
    compiled = torch.compile(causal_conv_silu, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(u, weight), causal_conv_silu(u, weight))

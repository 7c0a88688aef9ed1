"""SiLU of the causal depthwise convolution in front of the delta rule, over whole sequences."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 4
_TRITON = find_spec("triton") is not None
_DTYPES = (torch.bfloat16, torch.float16)


def plain_conv_silu(u: Tensor, weight: Tensor, documents: Tensor | None = None) -> Tensor:
    """The definition, with shapes as in `causal_conv_silu` and any width, in fp32 whatever the dtype of u."""
    width, rows = weight.shape[1], u.shape[1]
    padded = F.pad(u, (0, 0, width - 1, 0))
    taps = weight.to(u.dtype).float()
    if documents is not None:
        before = F.pad(documents, (width - 1, 0), value=-1)
    y = u.float() * taps[:, -1]
    for i in range(width - 1):
        term = padded[:, i : i + rows].float() * taps[:, i]
        if documents is not None:
            term = term.masked_fill((before[:, i : i + rows] != documents).unsqueeze(-1), 0.0)
        y = y + term
    return F.silu(y).to(u.dtype)


@torch.library.custom_op(
    "paceline::conv_silu", mutates_args=(), schema="(Tensor u, Tensor weight, Tensor? documents) -> Tensor"
)
def conv_silu(u: Tensor, weight: Tensor, documents: Tensor | None) -> Tensor:
    """`causal_conv_silu` by one Triton kernel."""
    from paceline.train.modules import conv_kernel

    documents = None if documents is None else documents.contiguous()
    return conv_kernel.conv_silu_forward(u.contiguous(), weight.contiguous(), documents)


@conv_silu.register_fake
def _(u: Tensor, weight: Tensor, documents: Tensor | None) -> Tensor:
    return u.new_empty(u.shape)


@torch.library.custom_op(
    "paceline::conv_silu_backward",
    mutates_args=(),
    schema="(Tensor u, Tensor weight, Tensor? documents, Tensor dout) -> (Tensor, Tensor)",
)
def conv_silu_backward(
    u: Tensor, weight: Tensor, documents: Tensor | None, dout: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of u and of the taps (fp32) by one Triton kernel and a sum over row segments."""
    from paceline.train.modules import conv_kernel

    documents = None if documents is None else documents.contiguous()
    return conv_kernel.conv_silu_backward(u.contiguous(), weight.contiguous(), documents, dout.contiguous())


@conv_silu_backward.register_fake
def _(u: Tensor, weight: Tensor, documents: Tensor | None, dout: Tensor) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), weight.new_empty(weight.shape, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, weight, documents = inputs
    ctx.save_for_backward(u, weight, documents)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, None]:
    u, weight, documents = ctx.saved_tensors
    du, dweight = conv_silu_backward(u, weight, documents, dout)
    return du, dweight.to(weight.dtype), None


conv_silu.register_autograd(_backward, setup_context=_save)


def causal_conv_silu(u: Tensor, weight: Tensor, documents: Tensor | None = None) -> Tensor:
    """SiLU of the causal depthwise convolution of u [B, T, C] with the taps weight [C, width] (the last one
    meets the row itself), [B, T, C] in u's dtype.

    documents: [B, T] int, a number that changes where a packed document ends; taps that reach into the
    document before are zero, like those before the first row. Taps are rounded to u's dtype, sums are fp32.
    """
    fused = u.is_cuda and u.dtype in _DTYPES and weight.shape[1] == WIDTH and _TRITON
    return conv_silu(u, weight, documents) if fused else plain_conv_silu(u, weight, documents)

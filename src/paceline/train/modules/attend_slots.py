"""Attention of one decoding step of a rollout: every slot stores its row and sees what it holds."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

_TRITON = find_spec("triton") is not None
_DTYPES = (torch.bfloat16, torch.float16)
_DIMS = (16, 32, 64, 128, 256)
_GROUP = 16
"""Query heads of one key head that the kernel takes at most."""


def plain_attend_slots(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """The definition, with shapes as in `attend_slots`. It reads all L rows, whatever the positions are."""
    slots = torch.arange(q.shape[0], device=q.device)
    keys[slots, :, positions], values[slots, :, positions] = k, v
    heads, groups, dim = k.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    scores = (q.view(-1, heads, groups, dim) * dim**-0.5) @ keys.mT  # [S, Hkv, G, L]
    past = torch.arange(keys.shape[2], device=q.device) <= positions.view(-1, 1, 1, 1)
    weights = scores.float().masked_fill(~past, float("-inf")).softmax(-1).to(q.dtype)
    return (weights @ values).flatten(1, 2)


@torch.library.custom_op(
    "paceline::attend_slots",
    mutates_args=("keys", "values"),
    schema="(Tensor q, Tensor k, Tensor v, Tensor positions, Tensor(a!) keys, Tensor(b!) values) -> Tensor",
)
def fused_attend_slots(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """`attend_slots` by one Triton kernel."""
    from paceline.train.modules import attend_kernel

    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return attend_kernel.attend_slots(q, k, v, positions.contiguous(), keys, values)


@fused_attend_slots.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return q.new_empty(q.shape)


def attend_slots(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Store one row a slot (k, v [S, Hkv, D] at positions [S]) into keys and values [S, Hkv, L, D] and let
    q [S, Hq, D] see all rows up to it -> [S, Hq, D]. Positions are int, 0 to L - 1; keys and values are
    contiguous."""
    fused = _TRITON and q.is_cuda and q.dtype in _DTYPES and keys.dtype == q.dtype
    fused = fused and q.shape[2] in _DIMS and q.shape[1] <= _GROUP * k.shape[1]
    form = fused_attend_slots if fused else plain_attend_slots
    out: Tensor = form(q, k, v, positions, keys, values)
    return out

"""Row loops for the CPU references, and the order of rows in a gated layer."""

from __future__ import annotations

from collections.abc import Callable

import torch


def rowwise(fn: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """``fn`` over the first dimension of ``tensors``: one call on CUDA, one call a row on the CPU.

    ATen's CPU loops handle the last elements of a range by scalar code whose exp differs in the last bit from
    the vector code, and cut ranges by size and thread count; so an element's value would depend on the number
    of rows. A call that holds one row only cannot show that.
    """
    if tensors[0].device.type != "cpu" or tensors[0].shape[0] == 0:
        return fn(*tensors)
    return torch.cat([fn(*(t[i : i + 1] for t in tensors)) for i in range(tensors[0].shape[0])])


def interleaved(weight: torch.Tensor, block: int = 16) -> torch.Tensor:
    """Rows [2 I, ...], all gates, then all ups, as blocks of gates and ups in turn, `block` rows each."""
    halves = weight.unflatten(0, (2, -1, block))
    return halves.transpose(0, 1).reshape(weight.shape)

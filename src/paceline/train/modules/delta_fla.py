"""The gated delta rule for training on a GPU: fla-core's chunk kernels behind two custom operators, so that a
block compiles as one graph. Everywhere else the plain form (`train.modules.delta`) runs, which is also the
oracle of the tests. On one H200, 65,536 tokens with 9 heads of 64 in bf16 take 0.7 ms forward and 1.0 ms
backward.
"""

from __future__ import annotations

import logging
import math
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.train.modules import delta

CHUNK = 64
FORGET = -40.0
"""Log decays below this are raised to it: e^-40 forgets a state wholly in bf16, and the sums of decays within
a chunk keep their small differences (a reset of -1e4 would leave them three digits)."""
_HEAD_SIZES = (16, 32, 64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)

logger = logging.getLogger("paceline.train")


def _pin(kernel: Any, warps: int, stages: int, **blocks: int) -> None:
    """One configuration instead of fla-core's search, which compiles some ninety kernels."""
    import triton

    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    kernel.configs = [triton.Config(blocks, num_warps=warps, num_stages=stages)]


@cache
def kernels() -> SimpleNamespace:
    """fla-core's functions and the kernel of this package, pinned and ready to launch."""
    # Other back ends of fla-core are searched for at every call, and the pinned kernels would not be used.
    os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
    from fla.ops.common import chunk_delta_h, chunk_o
    from fla.ops.gated_delta_rule import chunk_fwd, wy_fast

    from paceline.train.modules import delta_kernel

    _pin(chunk_fwd.chunk_gated_delta_rule_fwd_kkt_solve_kernel, 1, 3, BK=64)
    _pin(wy_fast.recompute_w_u_fwd_kernel, 4, 3)
    _pin(wy_fast.prepare_wy_repr_bwd_kernel, 4, 2)
    _pin(chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64, 4, 2, BV=64)
    _pin(chunk_delta_h.chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64, 2, 3, BV=32)
    _pin(chunk_o.chunk_fwd_kernel_o, 4, 3, BK=64, BV=64)
    _pin(chunk_o.chunk_bwd_kernel_dv_local, 4, 2)
    return SimpleNamespace(
        intra=chunk_fwd.chunk_gated_delta_rule_fwd_intra,
        states=chunk_delta_h.chunk_gated_delta_rule_fwd_h,
        outputs=chunk_o.chunk_fwd_o,
        dv_local=chunk_o.chunk_bwd_dv_local,
        dstates=chunk_delta_h.chunk_gated_delta_rule_bwd_dhu,
        gradients=delta_kernel.chunk_gradients,
        dwy=wy_fast.prepare_wy_repr_bwd,
    )


@cache
def _choose_path() -> str:
    if not torch.cuda.is_available():
        path, why = "torch", "no CUDA device"
    else:
        try:
            kernels()
            path, why = "fla", "fla-core's kernels"
        except (ImportError, AttributeError) as missing:  # not installed, or a version with other names
            path, why = "torch", f"{missing}; pip install 'paceline[train]' makes it several times faster"
    logger.info("gated delta rule: %s path (%s)", path, why)
    return path


@torch.compiler.assume_constant_result
def delta_path() -> str:
    """Which form `chunk_gated_delta` runs for half-precision CUDA tensors: "fla", or "torch" where there is
    no CUDA device or no fla-core. The choice is logged once."""
    return _choose_path()


def _reverse_sum(x: Tensor) -> Tensor:
    """Sum of a row and those after it within its chunk, [B, T, H]."""
    return x.unflatten(1, (-1, CHUNK)).flip(2).cumsum(2).flip(2).flatten(1, 2)


@torch.library.custom_op(
    "paceline::gated_delta",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? state)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[Tensor, ...]:
    """Outputs [B, T, Hv, dv], last state [B, Hv, dk, dv] fp32, then what the gradient needs again: decay
    summed in each chunk (log2), inverse [B, T, Hv, 64], w, states that enter the chunks, new values.

    T is a multiple of 64; q, k, v have one dtype. Keeping the last three instead of computing them again
    costs three tensors of v's size and saves two kernels of the backward pass.
    """
    f = kernels()
    q, k, v, beta = (x.contiguous() for x in (q, k, v, beta))
    gamma = g.unflatten(1, (-1, CHUNK)).cumsum(2).mul_(1 / math.log(2)).flatten(1, 2)
    w, u, inverse = f.intra(k=k, v=v, g=gamma, beta=beta)
    states, values, last = f.states(k=k, w=w, u=u, g=gamma, initial_state=state, output_final_state=True)
    out = f.outputs(q=q, k=k, v=values, h=states, g=gamma, scale=1.0)
    return out, last, gamma, inverse, w, states, values


@gated_delta.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None) -> tuple[Tensor, ...]:
    b, t, heads, dv = v.shape
    dk = q.shape[-1]
    return (
        v.new_empty(b, t, heads, dv),
        g.new_empty(b, heads, dk, dv),
        g.new_empty(b, t, heads),
        k.new_empty(b, t, heads, CHUNK),
        k.new_empty(b, t, heads, dk),
        k.new_empty(b, t // CHUNK, heads, dk, dv),
        v.new_empty(b, t, heads, dv),
    )


@torch.library.custom_op(
    "paceline::gated_delta_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? state, Tensor gamma, Tensor inverse,"
    " Tensor w, Tensor states, Tensor values, Tensor dout, Tensor? dlast)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def gated_delta_backward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor | None, gamma: Tensor, inverse: Tensor,
    w: Tensor, states: Tensor, values: Tensor, dout: Tensor, dlast: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v, g, beta and of the initial state (empty without one), in their dtypes."""
    f = kernels()
    q, k, v, beta, dout = (x.contiguous() for x in (q, k, v, beta, dout))
    dlast = None if dlast is None else dlast.contiguous()
    local = f.dv_local(q=q, k=k, do=dout, g=gamma, scale=1.0)
    dstates, dstate, du = f.dstates(q=q, k=k, w=w, do=dout, dv=local, g=gamma, h0=state, dht=dlast, scale=1.0)
    dq, dk, dw, dgamma = f.gradients(q, k, values, du, dout, gamma, states, dstates)
    dk_inverse, dv, dbeta, dgamma_inverse = f.dwy(k=k, v=v, beta=beta, A=inverse, dw=dw, du=du, g=gamma)
    dg = _reverse_sum(dgamma.add_(dgamma_inverse))
    return dq, dk.add_(dk_inverse), dv, dg, dbeta, gamma.new_empty(0) if dstate is None else dstate


@gated_delta_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor | None, gamma: Tensor, inverse: Tensor,
    w: Tensor, states: Tensor, values: Tensor, dout: Tensor, dlast: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    plain = [x.new_empty(x.shape) for x in (q, k, v, gamma, beta)]
    return *plain, gamma.new_empty(0 if state is None else state.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _, beta, state = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, beta, state, *output[2:])


def _backward(ctx: Any, dout: Tensor | None, dlast: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    q, k, v, beta, state, *rest = ctx.saved_tensors
    dout = torch.zeros_like(v) if dout is None else dout
    *grads, dstate = gated_delta_backward(q, k, v, beta, state, *rest, dout, dlast)
    return *grads, None if state is None else dstate


gated_delta.register_autograd(_backward, setup_context=_save)


def chunk_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, Hv, dv] (dtype of v) and the state after the last row [B, Hv, dk, dv] fp32.

    q, k: [B, T, Hk, dk], l2-normalised, q already scaled; v [B, T, Hv, dv]; g (log decay, fp32) and beta [B,
    T, Hv]; g far below zero starts a new document. Half-precision CUDA tensors go through fla-core's kernels
    where `delta_path` says so; fp32 and CPU tensors through the plain form, in fp32.
    """
    g = g.float().clamp(min=FORGET)
    sizes = q.shape[-1] in _HEAD_SIZES and v.shape[-1] in _HEAD_SIZES
    if not (v.is_cuda and v.dtype in _DTYPES and sizes and delta_path() == "fla"):
        return delta.chunk_gated_delta(q, k, v, g, beta, state)
    length = v.shape[1]
    q, k = q.to(v.dtype), k.to(v.dtype)
    if rows := -length % CHUNK:  # a row with g = 0 and beta = 0 leaves the state as it is
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, rows)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, rows)) for x in (g, beta))
    state = None if state is None else state.float().contiguous()
    out, last, *_ = gated_delta(q, k, v, g, beta, state)
    return (out[:, :length] if rows else out), last

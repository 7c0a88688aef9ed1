"""Inputs of the gated delta rule and its definition, token by token, for the tests of the fast forms."""

from __future__ import annotations

import torch
import torch.nn.functional as F

NAMES = ("out", "last", "q", "k", "v", "g", "beta", "state")
RESET = -1e4


def inputs(
    batch, length, key_heads, heads, dk, dv, *, resets=(), state=True, dtype=torch.float64, device="cpu"
):
    """q, k, v, g, beta, state (or None), drawn in fp64 and rounded; rows in `resets` start a document."""
    make = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=make)

    q = F.normalize(draw(batch, length, key_heads, dk), dim=-1) * dk**-0.5
    k = F.normalize(draw(batch, length, key_heads, dk), dim=-1)
    v = draw(batch, length, heads, dv)
    g = -0.3 * F.softplus(draw(batch, length, heads))
    beta = draw(batch, length, heads).sigmoid()
    for row in resets:
        g[:, row] = RESET
    s = draw(batch, heads, dk, dv) if state else None
    half = [x.to(dtype).to(device) for x in (q, k, v)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rest = [x if x is None else x.to(t).to(device) for x, t in ((g, wide), (beta, dtype), (s, wide))]
    return half + rest


def recurrence(q, k, v, g, beta, state=None):
    """The definition, in the dtype of its arguments, with autograd."""
    rep = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(rep, 2) for x in (q, k))
    s = q.new_zeros(v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]) if state is None else state
    out = []
    for t in range(q.shape[1]):
        s = s * g[:, t].exp()[..., None, None]
        delta = (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t])) * beta[:, t].unsqueeze(-1)
        s = s + torch.einsum("bhk,bhv->bhkv", k[:, t], delta)
        out.append(torch.einsum("bhkv,bhk->bhv", s, q[:, t]))
    return torch.stack(out, 1), s


def values_and_gradients(rule, arguments, *, use_last=True, seed=1):
    """Outputs, last state and the gradients of all arguments for a random weighting of the outputs."""
    arguments = [None if x is None else x.detach().clone().requires_grad_() for x in arguments]
    out, last = rule(*arguments)
    make = torch.Generator().manual_seed(seed)
    weight_out = torch.randn(out.shape, generator=make).to(out.device, torch.float64)
    weight_last = torch.randn(last.shape, generator=make).to(out.device, torch.float64)
    loss = (out.double() * weight_out).sum()
    if use_last:
        loss = loss + (last.double() * weight_last).sum()
    loss.backward()
    return [out.detach(), last.detach()] + [x.grad for x in arguments if x is not None]


def errors(got, want):
    """name -> norm of the difference over that of what is wanted (over 1 where that is nearly 0)."""
    result = {}
    for name, a, b in zip(NAMES, got, want, strict=False):
        assert a.isfinite().all(), f"{name} is not finite"
        norm = float(b.double().norm())
        result[name] = float((a.double() - b.double()).norm()) / (norm if norm > 1e-6 else 1.0)
    return result

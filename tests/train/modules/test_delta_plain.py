"""The plain chunked delta rule: exact where it could cancel, and with the recurrence's gradients."""

from __future__ import annotations

import torch

from paceline.train.modules import delta


def test_inverse_is_exact_for_repeated_keys() -> None:
    """Equal keys and beta near 1 make A all ones, where a power series loses everything."""
    a = torch.full((1, 64, 64), 0.999).tril(-1)
    error = delta.unit_lower_inverse(a) @ (a + torch.eye(64)) - torch.eye(64)
    assert error.abs().max() < 1e-4


def test_gradients_of_the_chunk_form_equal_those_of_the_recurrence() -> None:
    torch.manual_seed(0)
    rows, hk, hv, dk, dv = 70, 1, 2, 4, 4

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).requires_grad_()

    raw = [
        leaf(1, rows, hk, dk),
        leaf(1, rows, hk, dk),
        leaf(1, rows, hv, dv),
        leaf(1, rows, hv),
        leaf(1, rows, hv),
    ]
    weight = torch.randn(1, rows, hv, dv)

    def inputs() -> list[torch.Tensor]:
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in raw[:2])
        return [q, k, raw[2], -torch.nn.functional.softplus(raw[3]), raw[4].sigmoid()]

    out, _ = delta.chunk_gated_delta(*inputs())
    got = torch.autograd.grad((out * weight).sum(), raw)
    q, k, v, g, beta = inputs()
    state, outs = torch.zeros(1, hv, dk, dv), []
    for t in range(rows):
        kt, qt = (x[:, t].repeat_interleave(hv // hk, 1) for x in (k, q))
        state = state * g[:, t].exp()[..., None, None]
        d = (v[:, t] - torch.einsum("bhk,bhkv->bhv", kt, state)) * beta[:, t].unsqueeze(-1)
        state = state + kt.unsqueeze(-1) * d.unsqueeze(-2)
        outs.append(torch.einsum("bhk,bhkv->bhv", qt, state))
    naive = torch.stack(outs, 1)
    assert (out - naive).abs().max() < 1e-4
    want = torch.autograd.grad((naive * weight).sum(), raw)
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() < 1e-3

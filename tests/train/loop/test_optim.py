"""Muon against a plain reading of its description and against torch's own; who gets which optimiser."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paceline.train.loop.optim import Muon, Optimizer, muon_takes, orthogonalise
from tests.train.loop.tiny import Net, settings


def plain_muon(weight, grads, lr, momentum, decay):
    """One matrix, step by step, in fp64: momentum, Nesterov, five quintic iterations, decoupled decay."""
    weight, buffer = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for grad in grads:
        buffer = momentum * buffer + (1 - momentum) * grad.double()
        x = momentum * buffer + (1 - momentum) * grad.double()
        if x.shape[0] > x.shape[1]:
            x = x.T
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
        x = x.T if grad.shape[0] > grad.shape[1] else x
        weight = (1 - lr * decay) * weight - lr * 0.2 * math.sqrt(max(grad.shape)) * x
    return weight.float()


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (5, 5)], ids=["wide", "tall", "square"])
def test_muon_is_what_its_description_says(shape):
    torch.manual_seed(1)
    start = [torch.randn(shape) for _ in range(3)]
    params = [nn.Parameter(w.clone()) for w in start]
    grads = [[torch.randn(shape) for _ in params] for _ in range(4)]
    muon = Muon(params, 0.05, 0.9, 0.1)
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        muon.step()
    for i, p in enumerate(params):
        expected = plain_muon(start[i], [step[i] for step in grads], 0.05, 0.9, 0.1)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-4, atol=1e-5)


def test_muon_agrees_with_torchs_within_bfloat16():
    torch.manual_seed(2)
    ours, theirs = (nn.Parameter(w) for w in torch.randn(1, 8, 12).repeat(2, 1, 1))
    mine = Muon([ours], 0.05, 0.9, 0.1)
    other = torch.optim.Muon([theirs], 0.05, 0.1, 0.9, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(8, 12)
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.01)


def test_orthogonalise_flattens_the_singular_values():
    torch.manual_seed(3)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(2, 16, 24)))
    assert values.min() > 0.5 and values.max() < 1.3


def test_muon_takes_matrices_only():
    matrix, vector, kernel = torch.zeros(4, 4), torch.zeros(4), torch.zeros(4, 1, 4)
    assert muon_takes("layers.0.mlp.up_proj.weight", matrix)
    for name in ("embed_tokens.weight", "model.lm_head.weight", "layers.0.linear_attn.in_proj_a.weight"):
        assert not muon_takes(name, matrix)
    assert not muon_takes("norm.weight", vector) and not muon_takes("conv1d.weight", kernel)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_trainable_parameter_moves_once_and_frozen_ones_do_not(kind):
    module = Net()
    module.up.weight.requires_grad_(False)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    optimizer = Optimizer(module, settings(optimizer=kind))
    held = [p for part in optimizer.parts for group in part.param_groups for p in group["params"]]
    assert len(held) == len(set(map(id, held))) == len(optimizer.parameters)
    for p in optimizer.parameters:
        p.grad = torch.ones_like(p)
    optimizer.step(0.1)
    moved = {n for n, p in module.named_parameters() if not torch.equal(p, before[n])}
    assert moved == before.keys() - {"up.weight"}
    assert all(p.grad is None for p in module.parameters())


def test_adamw_is_torchs_with_decay_on_matrices_alone():
    mine, theirs = Net(), Net()
    optimizer = Optimizer(mine, settings(weight_decay=0.3))
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    vectors = [p for p in theirs.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.05, betas=(0.9, 0.95), eps=1e-8)
    torch.manual_seed(4)
    for _ in range(3):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimizer.step(0.05)
        reference.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("scale", [0.01, 10.0], ids=["within", "beyond"])
def test_clip_scales_and_then_bounds_the_norm(scale):
    torch.manual_seed(5)
    mine, theirs = Net(), Net()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad * scale
    norm = Optimizer(mine, settings()).clip(torch.tensor(scale), 1.0)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    torch.testing.assert_close(norm, expected)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_by_name_continues_where_it_was_taken(kind):
    def grads(module, seed):
        generator = torch.Generator().manual_seed(seed)
        for p in module.parameters():
            p.grad = torch.randn(p.shape, generator=generator)

    one, other = Net(), Net()
    first = Optimizer(one, settings(optimizer=kind))
    grads(one, 1)
    first.step(0.1)
    other.load_state_dict(one.state_dict())
    second = Optimizer(other, settings(optimizer=kind))
    second.load_state({n: {k: v.clone() for k, v in s.items()} for n, s in first.state().items()})
    for optimizer, module in ((first, one), (second, other)):
        grads(module, 2)
        optimizer.step(0.1)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)

"""The dispatch of the gated delta rule, and its plain form where documents start inside a chunk."""

from __future__ import annotations

import logging

import pytest
import torch

from paceline.train.modules import delta_fla
from tests.train.modules import delta_cases as cases

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")


@pytest.mark.parametrize("resets", [(), (0,), (0, 5, 63, 64, 70)])
def test_equals_the_recurrence_across_documents(resets):
    exact = cases.inputs(1, 75, 1, 2, 8, 8, resets=resets)
    want = cases.values_and_gradients(cases.recurrence, exact)
    single = [x.float() for x in exact]
    got = cases.values_and_gradients(delta_fla.chunk_gated_delta, single)
    assert max(cases.errors(got, want).values()) < 2e-5


def test_a_document_is_as_if_alone():
    q, k, v, g, beta, _ = cases.inputs(1, 70, 1, 1, 8, 8, resets=(30,), state=False, dtype=torch.float32)
    both, last = delta_fla.chunk_gated_delta(q, k, v, g, beta)
    alone, own = delta_fla.chunk_gated_delta(*(x[:, 30:] for x in (q, k, v, g, beta)))
    torch.testing.assert_close(both[:, 30:], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last, own, rtol=1e-4, atol=1e-5)


@needs_no_gpu
def test_the_path_is_logged_once(caplog):
    delta_fla._choose_path.cache_clear()
    with caplog.at_level(logging.INFO, logger="paceline.train"):
        assert delta_fla.delta_path() == delta_fla.delta_path() == "torch"
    assert [record.getMessage() for record in caplog.records] == [
        "gated delta rule: torch path (no CUDA device)"
    ]


def test_fakes_name_the_shapes_of_the_gradients():
    """What the compiler sees of the operators: shapes, dtypes and one graph, without a GPU."""
    arguments = cases.inputs(2, 128, 1, 2, 16, 32, state=False, dtype=torch.bfloat16)[:5]
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x).requires_grad_() for x in arguments]
        out, last, *_ = delta_fla.gated_delta(*fakes, None)
        assert out.shape == fakes[2].shape and out.dtype == torch.bfloat16
        assert last.shape == (2, 2, 16, 32) and last.dtype == torch.float32
        for x, grad in zip(fakes, torch.autograd.grad(out.sum(), fakes), strict=True):
            assert grad.shape == x.shape and grad.dtype == x.dtype

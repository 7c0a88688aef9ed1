"""On a GPU: compiled block masks, gradients included, against dense ones; and no wait for the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.train.draft.anchors import Anchors, document_starts
from paceline.train.draft.features import OnlineFeatures
from paceline.train.draft.initial import new_drafter
from paceline.train.draft.losses import LossShape, block_loss, block_loss_reference, head_chunk
from paceline.train.draft.masks import dense_draft_mask, flex_draft_mask
from paceline.train.draft.task import DrafterTask
from paceline.train.modules.drafter import Kind
from paceline.train.modules.layers import attend
from paceline.train.modules.load import load_train_target
from tests import tiny
from tests.train.draft.harness import SLIDING, draft_spec, packed
from tests.train.draft.test_losses import SHAPES

pytestmark = pytest.mark.gpu
BF16 = 2e-2
"""Relative error of a few roundings; a wrong mask is off by 1e-1 or more."""
KINDS: list[Kind] = [(None, False), (300, True), (300, False)]


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size"), [(8, 2, 64, 16), (9, 3, 64, 8), (4, 4, 128, 10)]
)
def test_flex_attention_and_its_gradients(kind: Kind, heads: int, kv_heads: int, dim: int, size: int) -> None:
    torch.manual_seed(0)
    length, count = 1000, 60
    documents = torch.ones(2, length, dtype=torch.int64, device="cuda")
    documents[0, 400:] = 2
    at = torch.rand(2, length - 2, device="cuda").argsort(1)[:, :count].sort(1).values
    anchors = Anchors(at, document_starts(documents).gather(1, at), torch.ones_like(at, dtype=torch.bool))
    rows = count * size
    leaves = [
        torch.randn(2, n, h, dim, device="cuda", dtype=torch.bfloat16)
        for n, h in ((rows, heads), (length + rows, kv_heads), (length + rows, kv_heads))
    ]
    weight = torch.randn(2, rows, heads, dim, device="cuda")
    results = []
    for flex in (True, False):
        inputs = [x.clone().to(torch.bfloat16 if flex else torch.float64).requires_grad_() for x in leaves]
        mask = (flex_draft_mask if flex else dense_draft_mask)(anchors, length, size, kind)
        out = attend(*inputs, mask)
        results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for got, want in zip(*results, strict=True):
        assert error(got, want) < BF16


@pytest.mark.parametrize("name", SHAPES)
def test_the_compiled_chunk_equals_the_reference(name: str) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(64, 7, 128, device="cuda", requires_grad=True)
    table, teacher = torch.randn(1000, 128, device="cuda"), torch.randn(64, 7, 128, device="cuda")
    labels = torch.randint(0, 1000, (64, 7), device="cuda")
    valid = torch.rand(64, 7, device="cuda") < 0.9
    taught = teacher if name == "kl" else None
    chunk = torch.compile(head_chunk(SHAPES[name]), dynamic=False)
    got = block_loss(hidden, table, labels, valid, taught, SHAPES[name], 100, chunk)
    want = block_loss_reference(hidden, table, labels, valid, taught, SHAPES[name])
    assert error(got.mean.detach(), want.mean.detach()) < 1e-3
    gradients = [torch.autograd.grad(parts.mean, hidden)[0] for parts in (got, want)]
    assert error(*gradients) < 1e-2


def gpu_task(folder: Path, loss: LossShape, device: str, compute: torch.dtype) -> DrafterTask:
    target = load_train_target(folder, device, compute)
    drafter = new_drafter(draft_spec(folder, {**SLIDING, "sliding_window": 20}), 0)
    features = OnlineFeatures(target, drafter.spec.target_layer_ids, hidden=loss.kind == "kl")
    return DrafterTask(
        drafter, target, packed(rows=2, length=256, count=30), features, loss, num_anchors=64, head_rows=64,
        device=torch.device(device), compute=compute, export=lambda module, path: None,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["dpace", "kl"])
def test_a_compiled_step_equals_the_cpus_and_never_waits(tmp_path: Path, name: str) -> None:
    folder = tiny.make_target(tmp_path, "odd")
    losses = {}
    for device in ("cpu", "cuda"):
        task = gpu_task(folder, SHAPES[name], device, torch.float32 if device == "cpu" else torch.bfloat16)
        if device == "cuda":
            task.compile()
        generator = torch.Generator().manual_seed(0)  # of the CPU, so that both draw the same anchors
        for step in range(2):
            loss, metrics = task.loss(task.batch(step, 0, 1), generator)
            loss.backward()
        losses[device] = float(loss.detach())
        assert all(value.device.type == device for value in metrics.values())
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=BF16)
    batch, generator = task.batch(2, 0, 1), torch.Generator(device="cuda")
    task.loss(batch, generator.manual_seed(1))[0].backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.loss(batch, generator)[0].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

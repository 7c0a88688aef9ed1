"""Who sees whom: against a plain loop, in both forms of the mask, and the leaks that other trainers had."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.train.draft.anchors import Anchors, document_starts
from paceline.train.draft.masks import dense_draft_mask, draft_mask, flex_draft_mask
from paceline.train.modules.drafter import Kind
from paceline.train.modules.layers import attend

KINDS: dict[str, Kind] = {
    "full": (None, False),
    "sliding": (5, True),
    "narrow": (2, True),
    "both ways": (3, False),
    "causal": (None, True),
}


def anchors_of(positions: list[list[int]], documents: Tensor) -> Anchors:
    """Anchors at `positions`; a negative one is not valid."""
    at = torch.tensor(positions)
    inside = at.clamp(min=0)
    return Anchors(inside, document_starts(documents).gather(1, inside), at >= 0)


def visible(anchor: int, valid: bool, row: int, kind: Kind, documents: list[int]) -> list[int]:
    """Context positions that slot `row` of a block sees, by the words of the paper."""
    window, _ = kind
    seen = []
    for key in range(len(documents)):
        before = valid and key < anchor and documents[key] == documents[anchor]
        if before and (window is None or anchor + row - key < window):
            seen.append(key)
    return seen


def own(row: int, size: int, kind: Kind) -> list[int]:
    """Slots of its own block that slot `row` sees."""
    window, causal = kind
    return [
        slot
        for slot in range(size)
        if (not causal or slot <= row) and (window is None or abs(slot - row) < window)
    ]


@pytest.mark.parametrize("name", KINDS)
def test_the_dense_mask_against_a_plain_loop(name: str) -> None:
    documents = torch.tensor([[1] * 7 + [2] * 6 + [0] * 3, [1] * 16])
    anchors, size, length = anchors_of([[2, 8, 11, -1], [0, 5, 6, 14]], documents), 3, 16
    mask = dense_draft_mask(anchors, length, size, KINDS[name])
    for row in range(2):
        for number in range(4):
            at, valid = int(anchors.positions[row, number]), bool(anchors.valid[row, number])
            for slot in range(size):
                seen = mask[row, 0, number * size + slot].nonzero().flatten().tolist()
                context = visible(at, valid, slot, KINDS[name], documents[row].tolist())
                block = [length + number * size + other for other in own(slot, size, KINDS[name])]
                assert seen == context + block


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("size", "length", "block"), [(4, 48, 16), (3, 37, 16), (5, 64, 32)])
def test_flex_attention_equals_the_dense_mask(name: str, size: int, length: int, block: int) -> None:
    """The block form leaves nothing out and computes nothing wrongly, aligned with its blocks or not."""
    torch.manual_seed(length)
    documents = torch.ones(2, length, dtype=torch.int64)
    documents[0, length // 3 :], documents[0, -5:] = 2, 0
    drawn = torch.rand(2, length - 8).argsort(1)[:, :9].sort(1).values.tolist()
    drawn[1][-3:] = [-1] * 3
    anchors = anchors_of(drawn, documents)
    rows = 9 * size
    q = torch.randn(2, rows, 4, 16)
    k, v = torch.randn(2, length + rows, 2, 16), torch.randn(2, length + rows, 2, 16)
    with torch.no_grad():
        flex = attend(q, k, v, flex_draft_mask(anchors, length, size, KINDS[name], block))
        dense = attend(q, k, v, dense_draft_mask(anchors, length, size, KINDS[name]))
    assert torch.allclose(flex, dense, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("size", "length", "block"), [(4, 256, 16), (3, 203, 16), (5, 128, 32)])
def test_the_block_form_computes_exactly_what_somebody_sees(
    name: str, size: int, length: int, block: int
) -> None:
    """Eager FlexAttention looks at every pair; the compiled one believes the blocks, so they are compared."""
    documents = torch.ones(2, length, dtype=torch.int64)
    documents[0, length // 2 :] = 2
    drawn = [list(range(8, length - 9, 8)), [*range(3, length - 14, 8), -1]]
    width = min(map(len, drawn))
    anchors = anchors_of([row[:width] for row in drawn], documents)
    flex = flex_draft_mask(anchors, length, size, KINDS[name], block)
    dense = dense_draft_mask(anchors, length, size, KINDS[name])[:, 0]
    spare = [-side % block for side in dense.shape[1:]]
    tiles = torch.nn.functional.pad(dense, (0, spare[1], 0, spare[0]))
    tiles = tiles.unflatten(1, (-1, block)).unflatten(3, (-1, block)).transpose(2, 3)
    partial = blocks_of(flex.kv_num_blocks, flex.kv_indices)
    whole = blocks_of(flex.full_kv_num_blocks, flex.full_kv_indices)
    assert not (partial & whole).any() and tiles[whole].all()
    needed = tiles.flatten(3).any(3)
    assert torch.equal(needed, needed & (partial | whole)), "a block that somebody sees is left out"
    extra = ((partial | whole) & ~needed).sum() / needed.sum()
    # Windows narrower than the distance of anchors leave holes, which ranges of blocks bridge; so do causal
    # blocks.
    assert extra <= (0 if name == "full" else 0.5) and needed.sum() < 0.8 * needed.numel()


def blocks_of(counts: Tensor | None, indices: Tensor | None) -> Tensor:
    """Bool [B, Q blocks, K blocks] of a BlockMask's lists."""
    assert counts is not None and indices is not None
    listed = torch.arange(indices.shape[-1]) < counts[:, 0].unsqueeze(-1)
    return torch.zeros_like(listed).scatter(2, indices[:, 0].long(), listed)


def test_the_cpu_takes_the_dense_form() -> None:
    anchors = anchors_of([[3]], torch.ones(1, 8, dtype=torch.int64))
    assert isinstance(draft_mask(anchors, 8, 4, (None, False)), Tensor)

"""Anchors and labels: answer tokens alone, never across documents, at their own positions."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.train.data.batches import TokenBatch
from paceline.train.draft.anchors import block_labels, block_positions, document_starts, draw_anchors
from paceline.train.draft.task import teacher_rows
from paceline.train.head.task import head_anchors


@st.composite
def rows(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss mask, documents) of two packed rows of 24 tokens."""
    masks, documents = [], []
    for _ in range(2):
        mask, numbers, number = list[bool](), list[int](), 0
        while len(mask) < 20:
            number += 1
            prompt, answer = draw(st.integers(1, 4)), draw(st.integers(1, 6))
            mask += [False] * prompt + [True] * answer
            numbers += [number] * (prompt + answer)
        masks.append((mask + [False] * 24)[:24])
        documents.append((numbers + [0] * 24)[:24])
    return torch.tensor(masks), torch.tensor(documents)


@given(rows(), st.integers(1, 30), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_anchors_are_the_answer_tokens_that_have_a_successor(
    packed: tuple[torch.Tensor, torch.Tensor], count: int, seed: int
) -> None:
    mask, documents = packed
    anchors = draw_anchors(mask, documents, count, torch.Generator().manual_seed(seed))
    assert anchors.positions.shape == (2, min(count, 23))
    for row in range(2):
        possible = {
            a
            for a in range(23)
            if mask[row, a] and mask[row, a + 1] and documents[row, a] == documents[row, a + 1]
        }
        drawn = anchors.positions[row, anchors.valid[row]].tolist()
        assert drawn == sorted(set(drawn)) and set(drawn) <= possible
        assert len(drawn) == min(count, len(possible))
        valid = anchors.valid[row].long()
        assert torch.equal(valid, valid.sort(descending=True).values), "valid ones come first"


def test_they_are_drawn_anew_and_evenly() -> None:
    mask, documents = torch.ones(1, 12, dtype=torch.bool), torch.ones(1, 12, dtype=torch.int64)
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(12)
    for _ in range(600):
        counts[draw_anchors(mask, documents, 3, generator).positions[0]] += 1
    assert counts[11] == 0 and counts[:11].min() > 110 and counts[:11].max() < 220  # 164 expected
    again = draw_anchors(mask, documents, 3, torch.Generator().manual_seed(0))
    assert torch.equal(
        again.positions, draw_anchors(mask, documents, 3, torch.Generator().manual_seed(0)).positions
    )


DOCUMENTS = torch.tensor([[1] * 6 + [2] * 7 + [0] * 3])
MASK = torch.tensor(
    [[False, False, True, True, True, True, False, False, False, True, True, True, True] + [False] * 3]
)
IDS = torch.arange(100, 116)[None]


def test_labels_stand_at_their_own_positions_and_end_with_the_answer() -> None:
    """Label shift and padding labels: a guess is compared with the token AT anchor + k, and with nothing
    outside its answer."""
    anchors = draw_anchors(MASK, DOCUMENTS, 15, None)
    labels = block_labels(IDS, MASK, DOCUMENTS, anchors, 4)
    got = {
        int(a): labels.ids[0, i, labels.valid[0, i]].tolist()
        for i, a in enumerate(anchors.positions[0])
        if anchors.valid[0, i]
    }
    assert got == {
        2: [103, 104, 105], 3: [104, 105], 4: [105],
        9: [110, 111, 112], 10: [111, 112], 11: [112],
    }  # fmt: skip
    assert not labels.valid[~anchors.valid].any()


def test_the_teacher_row_of_a_label_is_the_one_before_it() -> None:
    anchors = draw_anchors(MASK, DOCUMENTS, 6, None)
    labels = block_labels(IDS, MASK, DOCUMENTS, anchors, 3)
    taught = teacher_rows(IDS.unsqueeze(-1).float(), labels)  # the hidden row at t says t
    assert torch.equal(taught[..., 0].long() + 1, labels.ids.flatten(0, 1))


def test_positions_count_within_the_document() -> None:
    assert document_starts(DOCUMENTS)[0].tolist() == [0] * 6 + [6] * 7 + [13] * 3
    anchors = draw_anchors(MASK, DOCUMENTS, 6, None)
    positions = block_positions(DOCUMENTS, anchors, 3)[0]
    assert positions[:16].tolist() == [*range(6), *range(7), *range(3)]
    assert positions[16:].view(-1, 3)[0].tolist() == [2, 3, 4]  # anchor 2, first document
    assert positions[16:].view(-1, 3)[3].tolist() == [3, 4, 5]  # anchor 9, which is 3 in the second


def test_a_head_starts_where_a_hidden_row_stands_before() -> None:
    mask, documents = torch.ones(1, 8, dtype=torch.bool), torch.tensor([[1] * 4 + [2] * 4])
    anchors = head_anchors(TokenBatch(torch.arange(8)[None], mask, documents), 7, None)
    assert anchors.positions[0, anchors.valid[0]].tolist() == [1, 2, 5, 6]

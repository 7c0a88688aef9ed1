"""Guesses in packed rows are those of a document alone, and see nothing that serving has not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.train.data.batches import TokenBatch
from paceline.train.draft.anchors import Anchors, draw_anchors
from paceline.train.draft.features import Captured
from paceline.train.head import task as tasks
from paceline.train.head.task import HeadTask, committed_mask
from tests import tiny
from tests.train.draft.harness import one_document, packed
from tests.train.head.test_served import STEPS, head_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target"), "tied")


@pytest.fixture
def task(folder: Path) -> HeadTask:
    return head_task(folder, num_anchors=40)


def row() -> TokenBatch:
    """Three documents and padding."""
    return packed(rows=1, length=64).batch(0)


def hidden(task: HeadTask, tokens: TokenBatch, captured: Captured, anchors: Anchors) -> Tensor:
    with torch.no_grad():
        return task.guesses(tokens, captured, anchors).hidden


def anchors_at(positions: list[int], starts: list[int]) -> Anchors:
    at = torch.tensor([positions])
    return Anchors(at, torch.tensor([starts]), torch.ones_like(at, dtype=torch.bool))


def check_no_other_document(task: HeadTask) -> None:
    tokens = row()
    captured = task._features(tokens)
    here = (tokens.documents[0] == 2).nonzero().flatten()
    first, at = int(here[0]), int(here[9])
    packed_row = hidden(task, tokens, captured, anchors_at([at], [first]))
    alone = one_document(tokens.ids[0, here].tolist(), 6)
    single = hidden(task, alone, task._features(alone), anchors_at([9], [0]))
    assert torch.allclose(packed_row, single, atol=1e-4)


def check_nothing_from_the_anchor_on(task: HeadTask) -> None:
    """The target's hidden row at the anchor predicts the first guess already; none from there on is seen."""
    tokens = row()
    captured = task._features(tokens)
    assert captured.hidden is not None
    one = anchors_at([12], [0])
    want = hidden(task, tokens, captured, one)
    changed = captured.hidden.clone()
    changed[:, 12:] = 7.0
    assert torch.equal(hidden(task, tokens, replace(captured, hidden=changed), one), want)
    changed[:, 11] = 7.0  # the row before it is what the first guess comes from
    assert not torch.equal(hidden(task, tokens, replace(captured, hidden=changed), one), want)


def check_chains_are_apart(task: HeadTask) -> None:
    tokens = row()
    captured = task._features(tokens)
    among = hidden(task, tokens, captured, anchors_at([9, 12, 13], [0, 0, 0]))
    assert torch.allclose(among[:, 1:2], hidden(task, tokens, captured, anchors_at([12], [0])), atol=1e-5)


CHECKS = (check_no_other_document, check_nothing_from_the_anchor_on, check_chains_are_apart)


@pytest.mark.parametrize("check", CHECKS)
def test_a_chain_sees_what_serving_commits(check, task: HeadTask) -> None:
    check(task)


def test_the_checks_catch_a_mask_that_shows_too_much(task: HeadTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(anchors: Anchors, length: int) -> Tensor:
        return committed_mask(replace(anchors, positions=anchors.positions + 1), length)

    def earlier(anchors: Anchors, length: int) -> Tensor:
        return committed_mask(replace(anchors, starts=anchors.starts * 0), length)

    for wrong, check in ((later, check_nothing_from_the_anchor_on), (earlier, check_no_other_document)):
        monkeypatch.setattr(tasks, "committed_mask", wrong)
        with pytest.raises(AssertionError):
            check(task)


def test_the_first_position_of_a_document_has_no_row() -> None:
    anchors = anchors_at([3, 9], [0, 6])
    mask = committed_mask(anchors, 12)[0]
    assert [row.nonzero().flatten().tolist() for row in mask] == [[1, 2, 3], [7, 8, 9]]


def test_an_anchor_that_is_not_valid_has_a_softmax_and_no_loss(task: HeadTask) -> None:
    tokens = row()
    anchors = draw_anchors(tokens.loss_mask, tokens.documents, 63, None)
    guesses = task.guesses(tokens, task._features(tokens), anchors)
    assert not anchors.valid.all() and guesses.hidden.isfinite().all()
    assert guesses.labels.valid.shape[-1] == STEPS and not guesses.labels.valid[~anchors.valid].any()

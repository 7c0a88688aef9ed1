"""Bugs that other trainers of block drafters shipped, each planted here, and the check that catches it.

Every check passes on the real code, and fails with its bug in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.train.data.batches import TokenBatch
from paceline.train.draft import task as tasks
from paceline.train.draft.anchors import Anchors, BlockLabels, block_labels, draw_anchors
from paceline.train.draft.features import Captured
from paceline.train.draft.masks import dense_draft_mask
from paceline.train.draft.task import DrafterTask, Guesses
from paceline.train.modules.load import load_train_target
from tests import tiny
from tests.train.draft.harness import SIZE, SLIDING, make_task, packed


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target"), "tied")


@pytest.fixture
def task(tied: Path) -> DrafterTask:
    return make_task(
        tied, load_train_target(tied), SLIDING, num_anchors=40, batches=packed(rows=1, length=64)
    )


def whole(task: DrafterTask) -> tuple[TokenBatch, Captured, Anchors]:
    """A row of several documents, the target's view of it, and every anchor."""
    tokens = task.batch(0, 0, 1).tokens
    assert int(tokens.documents.max()) > 2 and not tokens.documents[0, -1]
    return tokens, task._features(tokens), draw_anchors(tokens.loss_mask, tokens.documents, 59, None)


def only(anchors: Anchors, number: int) -> Anchors:
    """One of the anchors, alone."""
    part = slice(number, number + 1)
    return Anchors(anchors.positions[:, part], anchors.starts[:, part], anchors.valid[:, part])


def last_anchor(anchors: Anchors) -> int:
    """Number of the last anchor: it stands in the last document."""
    return int(anchors.valid.sum()) - 1


def hidden(task: DrafterTask, tokens: TokenBatch, features: Tensor, anchors: Anchors) -> Tensor:
    with torch.no_grad():
        return task.guesses(tokens, Captured(features, None), anchors).hidden


def check_nothing_from_the_anchor_on(task: DrafterTask) -> None:
    """Features at the anchor encode the token after it: guesses must not depend on it, nor on later ones."""
    tokens, captured, anchors = whole(task)
    one = only(anchors, last_anchor(anchors))
    at = int(one.positions)
    changed = captured.features.clone()
    changed[:, at:] = 7.0
    assert torch.equal(hidden(task, tokens, captured.features, one), hidden(task, tokens, changed, one))
    changed[:, at - 1] = 7.0
    assert not torch.equal(hidden(task, tokens, captured.features, one), hidden(task, tokens, changed, one))


def check_no_other_block(task: DrafterTask) -> None:
    """A block guesses the same alone and among others."""
    tokens, captured, anchors = whole(task)
    among, number = hidden(task, tokens, captured.features, anchors), last_anchor(anchors)
    alone = hidden(task, tokens, captured.features, only(anchors, number))
    assert torch.allclose(among[:, number], alone[:, 0], atol=1e-5)


def check_no_other_document(task: DrafterTask) -> None:
    """Guesses depend on the features of their own document alone."""
    tokens, captured, anchors = whole(task)
    first = int((tokens.documents[0] == tokens.documents.max()).nonzero()[0])
    number = next(
        i for i in range(59) if int(anchors.positions[0, i]) > first
    )  # so near that a window reaches out
    one = only(anchors, number)
    changed = captured.features.clone()
    changed[:, :first] = 7.0
    assert torch.equal(hidden(task, tokens, captured.features, one), hidden(task, tokens, changed, one))


def oracle_loss(task: DrafterTask, tokens: TokenBatch, anchors: Anchors) -> float:
    """The loss of guesses that are the target's embedding of the token at anchor + k: with a tied head and
    the right labels they are certain and right."""
    ids = torch.nn.functional.pad(tokens.ids, (0, SIZE))
    at = anchors.positions.unsqueeze(-1) + torch.arange(1, SIZE)
    rows = task._target.embed(ids.gather(1, at.flatten(1))).view(1, -1, SIZE - 1, 64)
    labels = tasks.block_labels(tokens.ids, tokens.loss_mask, tokens.documents, anchors, SIZE - 1)
    return float(task._parts(Guesses(rows, labels, anchors), Captured(None, None)).mean)


def check_right_guesses_cost_nothing(task: DrafterTask) -> None:
    """The guess of slot k is compared with the token at anchor + k, through the target's own head."""
    tokens, _, anchors = whole(task)
    assert oracle_loss(task, tokens, anchors) < 1e-3


def check_nothing_is_learnt_from_padding(task: DrafterTask) -> None:
    """Tokens of prompts and padding are no labels."""
    tokens, _, anchors = whole(task)
    labels = tasks.block_labels(tokens.ids, tokens.loss_mask, tokens.documents, anchors, SIZE - 1)
    assert tokens.loss_mask.gather(1, labels.at.flatten(1)).view_as(labels.valid)[labels.valid].all()
    reachable = (labels.at[0][labels.valid[0]]).unique()
    answers = tokens.loss_mask[0] & (tokens.documents[0] > 0)
    first = (
        answers & ~torch.nn.functional.pad(answers, (1, 0))[:-1]
    )  # an answer's first token is never guessed
    assert torch.equal(reachable, (answers & ~first).nonzero().flatten())


Patch = Callable[[DrafterTask, pytest.MonkeyPatch], None]


def plant_mask(change: Callable[[Anchors], Anchors] | None, every_block: bool = False) -> Patch:
    def plant(task: DrafterTask, patch: pytest.MonkeyPatch) -> None:
        def mask(anchors: Anchors, length: int, size: int, kind: Any) -> Tensor:
            wrong = dense_draft_mask(change(anchors) if change else anchors, length, size, kind)
            if every_block:
                wrong[..., length:] = True
            return wrong

        patch.setattr(tasks, "draft_mask", mask)

    return plant


def plant_labels(change: Callable[[BlockLabels, Tensor, Anchors], BlockLabels]) -> Patch:
    def plant(task: DrafterTask, patch: pytest.MonkeyPatch) -> None:
        def labels(ids: Tensor, mask: Tensor, documents: Tensor, anchors: Anchors, count: int) -> BlockLabels:
            return change(block_labels(ids, mask, documents, anchors, count), ids, anchors)

        patch.setattr(tasks, "block_labels", labels)

    return plant


def shifted(labels: BlockLabels, ids: Tensor, anchors: Anchors) -> BlockLabels:
    later = (labels.at + 1).clamp(max=ids.shape[1] - 1)
    return replace(labels, ids=ids.gather(1, later.flatten(1)).view_as(labels.ids))


def unmasked(labels: BlockLabels, ids: Tensor, anchors: Anchors) -> BlockLabels:
    return replace(labels, valid=torch.ones_like(labels.valid))


def plant_random_head(task: DrafterTask, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task, "_table", torch.randn_like(task._table))


TRAPS: dict[str, tuple[Callable[[DrafterTask], None], Patch]] = {
    "anchor leak": (
        check_nothing_from_the_anchor_on,
        plant_mask(lambda a: replace(a, positions=a.positions + 1)),
    ),
    "cross-block leak": (check_no_other_block, plant_mask(None, every_block=True)),
    "cross-document leak": (check_no_other_document, plant_mask(lambda a: replace(a, starts=a.starts * 0))),
    "label shift": (check_right_guesses_cost_nothing, plant_labels(shifted)),
    "random tied head": (check_right_guesses_cost_nothing, plant_random_head),
    "padding labels": (check_nothing_is_learnt_from_padding, plant_labels(unmasked)),
}


@pytest.mark.parametrize("name", TRAPS)
def test_the_trap_is_not_there(name: str, task: DrafterTask) -> None:
    TRAPS[name][0](task)


@pytest.mark.parametrize("name", TRAPS)
def test_the_check_catches_it(name: str, task: DrafterTask, monkeypatch: pytest.MonkeyPatch) -> None:
    check, plant = TRAPS[name]
    plant(task, monkeypatch)
    with pytest.raises(AssertionError):
        check(task)

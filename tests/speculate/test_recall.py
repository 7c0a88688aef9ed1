"""The text's own past as a second opinion on drafts."""

from __future__ import annotations

import random

import pytest
import torch

from paceline.speculate.recall import NOTHING, SIZES, Endings, give_way, recalled_row


def slow_following(text: list[int], limit: int) -> list[int]:
    """The oracle: walk back from the end."""
    for size in SIZES:
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == text[len(text) - size :]:
                return text[place : place + limit]
    return []


def indexed(*parts: list[int]) -> Endings:
    endings = Endings()
    for part in parts:
        endings.extend(part)
    return endings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([], []),
        ([7], []),
        ([1, 2, 3], []),
        ([1, 2, 9, 8, 1, 2], [9, 8, 1]),
        ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2]),  # the newest place
        ([5, 1, 2, 3, 9, 6, 2, 3, 8, 5, 1, 2, 3], [9, 6, 2]),  # the longer ending
        ([4, 4, 4], [4]),
    ],
)
def test_what_followed_the_last_such_ending(text: list[int], found: list[int]) -> None:
    assert indexed(text).following(3) == slow_following(text, 3) == found


def test_it_is_the_same_however_the_text_arrives() -> None:
    draw = random.Random(0)
    for turn in range(300):
        text = [draw.randrange(4) for _ in range(draw.randrange(200 if turn % 3 else 20))]
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(3))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        endings = indexed(*parts)
        assert len(endings) == len(text)
        assert endings.following(5) == slow_following(text, 5)


def test_a_row_is_filled_up() -> None:
    assert recalled_row(indexed([1, 2, 1, 2]), 4) == [1, 2, NOTHING, NOTHING]
    assert recalled_row(indexed([1, 2]), 2) == [NOTHING, NOTHING]


def test_drafts_give_way_only_where_both_begin_alike() -> None:
    drafts = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3], [0, 0, 0]])
    recalled = torch.tensor([[1, 9, 9], [2, 9, 9], [1, 9, NOTHING], [NOTHING] * 3])
    assert give_way(drafts, recalled).tolist() == [[1, 9, 9], [1, 2, 3], [1, 9, 3], [0, 0, 0]]

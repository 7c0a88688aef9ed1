"""The text's own past as a second opinion on drafts."""

from __future__ import annotations

import random

import pytest
import torch

from paceline.speculate.recall import LONGEST, NOTHING, SIZES, Endings, follow, recalled_row


def slow_following(text: list[int], limit: int) -> tuple[int, list[int]]:
    """The oracle: walk back from the end."""
    for size in SIZES:
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == text[len(text) - size :]:
                agreed = size
                while agreed < min(place, LONGEST) and text[place - agreed - 1] == text[-agreed - 1]:
                    agreed += 1
                return agreed, text[place : place + limit]
    return 0, []


def indexed(*parts: list[int], room: int = 300) -> Endings:
    endings = Endings(room)
    for part in parts:
        endings.extend(part)
    return endings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([], (0, [])),
        ([7], (0, [])),
        ([1, 2, 3], (0, [])),
        ([1, 2, 9, 8, 1, 2], (2, [9, 8, 1])),
        ([1, 2, 9, 1, 2, 8, 1, 2], (2, [8, 1, 2])),  # the newest place
        ([5, 1, 2, 3, 9, 6, 2, 3, 8, 5, 1, 2, 3], (4, [9, 6, 2])),  # the longer ending
        ([4, 4, 4], (2, [4])),
        ([0, 0, 0, 5, 0], (1, [5, 0])),
        ([*range(20), 99, *range(20)], (LONGEST, [99, 0, 1])),
    ],
)
def test_what_followed_the_last_such_ending(text: list[int], found: tuple[int, list[int]]) -> None:
    assert indexed(text).following(3) == slow_following(text, 3) == found


def test_it_is_the_same_however_the_text_arrives() -> None:
    draw = random.Random(0)
    for turn in range(300):
        text = [draw.randrange(4) for _ in range(draw.randrange(200 if turn % 3 else 20))]
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(3))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        endings = indexed(*parts, room=30_000)
        assert len(endings) == len(text)
        assert endings.following(5) == slow_following(text, 5)


def test_a_text_beyond_its_room_is_remembered_worse_but_never_wrongly() -> None:
    draw = random.Random(1)
    text = [draw.randrange(50) for _ in range(400)]
    endings, found = Endings(4), 0
    for place, token in enumerate(text):
        endings.extend([token])
        agreed, after = endings.following(3)
        found += agreed > 0
        seen = text[: place + 1]
        ends = [i for i in range(1, place + 1) if seen[i : i + 3] == after and seen[i - 1] == token]
        assert not agreed or any(seen[i - agreed : i] == seen[len(seen) - agreed :] for i in ends)
    assert found > 20


def test_a_row_is_filled_up() -> None:
    assert recalled_row(indexed([1, 2, 1, 2]), 4) == [2, 1, 2, NOTHING, NOTHING]
    assert recalled_row(indexed([1, 2]), 2) == [0, NOTHING, NOTHING]


@pytest.mark.parametrize(
    ("leads", "recalled", "followed"),
    [
        (
            [0.0, 9.0, 9.0],
            [1, 1, 8, 8],
            [1, 2, 3],
        ),  # one agreeing token is little: both others are objected to
        ([0.0, 0.9, 2.9], [1, 1, 8, 9], [1, 8, 9]),  # each token that is followed speaks for the next
        ([0.0, 0.9, 3.1], [1, 1, 8, 9], [1, 8, 3]),
        ([0.9, 0.0, 0.0], [1, 7, 8, 9], [1, 2, 3]),  # not behind a token that is not followed
        ([0.9, 2.0, 4.0], [2, 7, 8, 9], [7, 8, 9]),
        ([28.0, 30.0, 32.0], [LONGEST, 7, 8, 9], [7, 8, 9]),
        ([0.0, 0.0, 0.0], [4, 1, 8, NOTHING], [1, 8, 3]),
        ([0.0, 0.0, 0.0], [0, NOTHING, NOTHING, NOTHING], [1, 2, 3]),
    ],
)
def test_the_past_is_followed_as_far_as_it_is_believed(
    leads: list[float], recalled: list[int], followed: list[int]
) -> None:
    drafts, row = torch.tensor([[1, 2, 3]] * 2), torch.tensor([recalled, [0, *[NOTHING] * 3]])
    both = torch.tensor([leads, [0.0] * 3])
    assert follow(drafts, both, row).tolist() == [followed, [1, 2, 3]]
    # One after the other, as a head drafts them, it comes to the same.
    one_by_one = drafts[:, :0]
    for j in range(3):
        chosen = follow(drafts[:, j : j + 1], both[:, j : j + 1], row, one_by_one)
        one_by_one = torch.cat([one_by_one, chosen], 1)
    assert one_by_one.tolist() == [followed, [1, 2, 3]]

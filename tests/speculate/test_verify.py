"""Acceptance of drafts: the tensor form against one window in plain Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculate.verify import Accepted, accept, accept_in_torch, accept_reference

TOKENS = st.integers(0, 2)  # few, so that drafts often agree
WINDOWS = st.lists(
    st.integers(0, 5).flatmap(
        lambda n: st.tuples(
            st.lists(TOKENS, min_size=n + 1, max_size=n + 1), st.lists(TOKENS, min_size=n, max_size=n)
        )
    ),
    min_size=1,
    max_size=5,
)


def test_by_hand() -> None:
    assert accept_reference([4], []) == [4]
    assert accept_reference([4, 5, 6], [4, 5]) == [4, 5, 6]
    assert accept_reference([4, 5, 6], [4, 9]) == [4, 5]
    # What follows a wrong draft does not count, even where it agrees.
    assert accept_reference([4, 5, 6], [9, 5]) == [4]


@pytest.mark.parametrize("accept", [accept, accept_in_torch], ids=["host", "torch"])
@given(WINDOWS, st.integers(0, 2), st.booleans())
def test_all_windows_at_once_equal_each_in_plain_python(
    accept: Callable[..., Accepted], windows: list[tuple[list[int], list[int]]], spare: int, padding: bool
) -> None:
    """Windows of different lengths side by side; what lies beyond a window, and padding, give nothing."""
    width = max(len(sampled) for sampled, _ in windows) + spare
    counts = [len(sampled) for sampled, _ in windows] + [0] * padding
    starts = [sum(counts[:i]) for i in range(len(counts))]
    drafts = torch.full((len(counts), max(width - 1, 1)), 1)
    for row, (_, drafted) in zip(drafts, windows, strict=False):
        row[: len(drafted)] = torch.tensor(drafted, dtype=torch.int64)
    flat = torch.tensor([token for sampled, _ in windows for token in sampled])
    got = accept(flat, drafts, torch.tensor(starts), torch.tensor(counts), width)
    for i, (sampled, drafted) in enumerate(windows):
        expected = accept_reference(sampled, drafted)
        count = int(got.counts[i])
        assert got.tokens[i, :count].tolist() == expected
        assert int(got.last_rows[i]) == starts[i] + count - 1
    assert got.counts[len(windows) :].tolist() == [0] * padding

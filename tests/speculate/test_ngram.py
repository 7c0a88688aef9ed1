"""N-gram look-up: the longest match, or nothing; and nothing must be exact on a hybrid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.sampling import SamplingParams
from paceline.speculate.ngram import lookup
from tests import tiny
from tests.engine.harness import assemble_tiny, run


@pytest.mark.parametrize(
    ("tokens", "shortest", "longest", "limit", "found"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 1, 5, 4, [9, 1, 2, 3]),
        ([1, 2, 3, 9, 1, 2, 3], 1, 5, 2, [9, 1]),
        # The longest suffix wins over a nearer, shorter one.
        ([5, 6, 7, 0, 6, 7, 1, 5, 6, 7], 1, 3, 1, [0]),
        ([5, 6, 7, 0, 6, 7, 1, 5, 6, 7], 1, 2, 1, [0]),  # of equal ones the earliest
        ([4, 4, 4], 1, 2, 3, [4]),  # a match may overlap the suffix
        ([1, 2, 3], 1, 3, 3, []),
        ([1, 2, 1], 2, 3, 3, []),  # shorter than is wanted
        ([7], 1, 1, 3, []),
        ([1, 1], 1, 1, 0, []),
        # 0x01000000 then 0x00000001: the suffix's bytes also occur across two ids.
        ([0x00000100, 0x00000100, 0x01000000, 0x00000001, 0x00010000], 1, 1, 3, []),
    ],
)
def test_by_hand(tokens: list[int], shortest: int, longest: int, limit: int, found: list[int]) -> None:
    assert lookup(tokens, shortest, longest, limit) == found


def plainly(tokens: list[int], shortest: int, longest: int, limit: int) -> list[int]:
    """The definition, position by position."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                return tokens[start + size : start + size + limit]
    return []


@given(
    st.lists(st.sampled_from([0, 1, 256, 65536]), min_size=1, max_size=30),
    st.integers(1, 3), st.integers(0, 3), st.integers(0, 6),
)  # fmt: skip
def test_equals_the_definition(tokens: list[int], shortest: int, more: int, limit: int) -> None:
    assert lookup(tokens, shortest, shortest + more, limit) == plainly(
        tokens, shortest, shortest + more, limit
    )


# Drawn from a dozen ids, text repeats itself now and then, and often goes on otherwise.
SAMPLINGS = [{"temperature": 0.0}, {"temperature": 1.0, "allowed_token_ids": list(range(20, 32))}]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_windows_with_and_without_drafts_are_exact_on_a_hybrid(
    tmp_path: Path, sampling: dict[str, Any]
) -> None:
    """Sequences that repeat themselves beside such that do not, in one batch."""
    folder = tiny.make_target(tmp_path / "target", "three")
    prompts = [[5, 6, 7, 8] * 6, list(range(10, 40)), [50, 51] * 9, [60]]
    params = SamplingParams(max_tokens=40, ignore_eos=True, **sampling)
    plain = run(assemble_tiny(folder), prompts, params)
    config = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    drafted = run(assemble_tiny(folder, speculative=config), prompts, params)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    stats = [o.stats for o in drafted]
    assert sum(s.num_drafts for s in stats) > 0, "something was to be drafted"
    # The last window of a sequence never holds a draft; others were to hold none, too.
    assert sum(s.target_passes - s.num_drafts for s in stats) > len(stats)
    accepted = sum(s.num_accepted_tokens for s in stats)
    assert 0 < accepted < sum(s.num_draft_tokens for s in stats)
